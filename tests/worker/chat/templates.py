"""Templates as models have them, in short: each writes tools, calls and reasoning in a way of its own."""

from __future__ import annotations

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Knows no tools."""

HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}{% if call.id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)

ARGS = (
    "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[CALL_ID]{{ call.id }}"
    "[ARGS]{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{% endfor %}</s>{% endif %}{% endfor %}"
)
"""A later Mistral's, with an id between name and arguments."""

LLAMA = (
    "{{ bos_token }}{% if tools %}<|h|>system<|e|>{{ tools | tojson(indent=4) }}<|eot_id|>{% endif %}"
    "{% for m in messages %}<|h|>{{ m.role }}<|e|>\n\n{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<|eot_id|>'
    "{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|e|>\n\n{% endif %}"
)

DEEPSEEK = (
    "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Bot｜>"
    "{{ m.content.split('</think>')[-1] }}{% for call in m.tool_calls or [] %}"
    "{% if loop.first %}<｜calls▁begin｜>{% endif %}<｜call▁begin｜>function<｜sep｜>{{ call.function.name }}"
    "\n```json\n{{ call.function.arguments }}\n```<｜call▁end｜>"
    "{% if loop.last %}<｜calls▁end｜>{% endif %}{% endfor %}<｜end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Bot｜><think>\n{% endif %}"
)
"""Arguments are the text that they are given as; answers begin with reasoning."""

THINKING = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

XML = (
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<call={{ call.function.name }}>{% for key, value in call.function.arguments | items %}<p={{ key }}>{{ value }}</p>"
    "{% endfor %}</call>{% endfor %}</{{ m.role }}>{% endfor %}"
)

NUMBERED = (
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<call>{{ call.function.name }}:{{ loop.index0 }}<args>{{ call.function.arguments | tojson }}</call>"
    "{% endfor %}</{{ m.role }}>{% endfor %}"
)

OWN = (
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    "<call>{{ call.function.name }} with {% if call.function.arguments is mapping %}"
    "{% for key, value in call.function.arguments | items %}{{ key }}=<{{ value }}>{% endfor %}{% else %}"
    "{{ call.function.arguments }}{% endif %}</call>{% endfor %}</{{ m.role }}>{% endfor %}"
)
"""Writes objects in a way of its own, and lets through what is text."""
