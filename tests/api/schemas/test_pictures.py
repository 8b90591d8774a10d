"""Images in requests: where their marks stand, in which order, and what is no image's address."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.schemas.ask import Ask
from api.schemas.llamacpp import completion, infill
from api.schemas.openai import chat, completions
from api.schemas.pictures import MAX_PICTURES, without_files
from api.schemas.vocabulary import apply_template
from shared.errors import InvalidRequest, NotSupported
from shared.events import Finished, Text
from shared.jobs import Chat, Completion, Image

DATA = "data:image/png;base64,"


def shown(ask: Ask) -> tuple[list[str], list[str]]:
    """The texts of a request with `*` for each picture, and what was given of the pictures in their order."""
    request = ask.request
    match request:
        case Completion(prompts=prompts):
            texts = [str(prompt) for prompt in prompts]
        case Chat(messages=messages):
            texts = [message["content"] for message in messages]
        case _:
            raise AssertionError(request)
    assert sum(text.count(ask.album.mark) for text in texts) == len(ask.album.pictures)
    pictures = [picture.data or picture.url for picture in ask.album.pictures]
    return [text.replace(ask.album.mark, "*") for text in texts], pictures


def tagged(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "data": f"{number}"} for number in ids]


@pytest.mark.parametrize(
    ("prompt", "ids", "texts", "pictures"),
    [
        ("see [img-1].", [1], ["see *."], ["1"]),
        ("[img-2][img-1]", [1, 2], ["**"], ["2", "1"]),
        ("[img-1] and again [img-1]", [1], ["* and again *"], ["1", "1"]),
        (["[img-1]", "none", "[img-0] [img-1]"], [0, 1], ["*", "none", "* *"], ["1", "0", "1"]),
        ("no tag", [1], ["no tag"], []),
        ("[img-1] is text", [], ["[img-1] is text"], []),
        ("[img-x] [img-] [img-1]", [1], ["[img-x] [img-] *"], ["1"]),
        ({"prompt_string": "a [img-7]"}, [7], ["a *"], ["7"]),
    ],
    ids=str,
)
def test_a_tag_stands_for_the_image_of_its_number(
    prompt: Any, ids: list[int], texts: list[str], pictures: list[str]
) -> None:
    assert shown(completion({"prompt": prompt, "image_data": tagged(*ids)})) == (texts, pictures)


@pytest.mark.parametrize("prompt", ["[img-2]", "[img-999999999]", ["x", "[img-2]"], {"prompt_string": "[img-2]"}])
def test_a_tag_of_no_image_is_refused(prompt: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^Field 'prompt.*: image_data has no id (\d+) \(invalid image index: \1\)$"
    ):
        completion({"prompt": prompt, "image_data": tagged(1)})


@pytest.mark.parametrize(
    "given",
    [
        {},
        "x",
        [1],
        [{}],
        [{"data": "x"}],
        [{"data": 5, "id": 1}],
        [{"data": "x", "id": -1}],
        [{"data": "x", "id": "1"}],
    ],
    ids=str,
)
def test_image_data_is_a_list_of_files_with_numbers(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'image_data"):
        completion({"prompt": "x", "image_data": given})


def test_a_number_means_one_image() -> None:
    with pytest.raises(InvalidRequest, match=r"image_data\[1\].id.*1 is given twice"):
        completion({"prompt": "[img-1]", "image_data": tagged(1, 1)})


@pytest.mark.parametrize(
    ("prompt", "texts", "pictures"),
    [
        ({"prompt_string": "a <__media__> b <__media__>", "multimodal_data": ["1", "2"]}, ["a * b *"], ["1", "2"]),
        ({"prompt_string": "<__media__><__media__>", "multimodal_data": ["1", "2"]}, ["**"], ["1", "2"]),
        ({"prompt_string": "none", "multimodal_data": []}, ["none"], []),
        ({"prompt_string": "<__media__> is text"}, ["<__media__> is text"], []),
        (
            [{"prompt_string": "<__media__>", "multimodal_data": ["1"]}, "x", {"prompt_string": "y"}],
            ["*", "x", "y"],
            ["1"],
        ),
    ],
    ids=str,
)
def test_a_marker_stands_for_the_next_image(prompt: Any, texts: list[str], pictures: list[str]) -> None:
    assert shown(completion({"prompt": prompt})) == (texts, pictures)
    assert shown(completions({"prompt": prompt})) == (texts, pictures)


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("<__media__>", []),
        ("none", ["1"]),
        ("<__media__>", ["1", "2"]),
        ("<__media__>", "1"),
        ("<__media__>", [5]),
        ("<__media__>", {"0": "1"}),
    ],
)
def test_there_are_as_many_images_as_markers(text: str, files: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'prompt\.multimodal_data"):
        completion({"prompt": {"prompt_string": text, "multimodal_data": files}})


def part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def says(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("parts", "content", "pictures"),
    [
        ([text("a"), part(f"{DATA}1"), text("b"), text("c")], "a*b\nc", ["1"]),
        ([part(f"{DATA}1"), part("https://x/y.png")], "**", ["1", "https://x/y.png"]),
        ([part("data:image/jpeg;name=a.jpg;base64,1")], "*", ["1"]),
        ([part("DATA:image/webp;BASE64,1")], "*", ["1"]),
        ([part("HTTP://x/y")], "*", ["HTTP://x/y"]),
        ([{"type": "input_image", "image_url": f"{DATA}1"}, text("a")], "*a", ["1"]),
        ([{"type": "image_url", "image_url": f"{DATA}1"}], "*", ["1"]),
    ],
    ids=str,
)
def test_a_picture_of_a_chat_stands_where_its_part_stood(parts: Any, content: str, pictures: list[str]) -> None:
    assert shown(chat(says(*parts))) == ([content], pictures)


def test_pictures_of_several_messages_come_in_their_order() -> None:
    messages = [{"role": "user", "content": [part(f"{DATA}{number}")]} for number in range(3)]
    assert shown(chat({"messages": messages})) == (["*", "*", "*"], ["0", "1", "2"])


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "/etc/passwd", "ftp://x/y", "gopher://x", "javascript:1", "x", "", None, 5, {}, []),
        *("data:,", "data:image/png,x", "data:;base64,x", "data:text/plain;base64,x", "data:image/png;base64", "data:"),
        *(
            " data:image/png;base64,x",
            "data:image/;base64,x",
            "\0http://x",
            "blob:http://x/y",
            "data:image/png;base64;x",
        ),
    ],
)
def test_what_is_no_address_of_an_image_is_refused_by_name(url: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Field 'messages\[0\].content\[1\].image_url"):
        chat(says(text("x"), part(url)))


@pytest.mark.parametrize("given", [{}, {"image_url": None}, {"image_url": []}, {"image_url": 5}, {"file_id": "x"}])
@pytest.mark.parametrize("kind", ["image_url", "input_image"])
def test_a_part_without_an_address_is_refused(kind: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="must be the address of an image"):
        chat(says({"type": kind, **given}))


def test_more_images_than_any_context_holds_are_refused() -> None:
    assert completion({"prompt": "[img-1]" * MAX_PICTURES, "image_data": tagged(1)})
    with pytest.raises(InvalidRequest, match="at most"):
        completion({"prompt": "[img-1]" * (MAX_PICTURES + 1), "image_data": tagged(1)})
    with pytest.raises(InvalidRequest, match="at most"):
        chat(says(*[part(f"{DATA}1")] * (MAX_PICTURES + 1)))


def test_no_client_can_write_a_mark() -> None:
    first, second = (completion({"prompt": "[img-1]", "image_data": tagged(1)}) for _ in range(2))
    assert first.album.mark != second.album.mark and len(first.album.mark) >= 32


@pytest.mark.parametrize(
    ("read_body", "body"),
    [
        (infill, {"input_prefix": "[img-1]", "input_suffix": "y"}),
        (chat, {"messages": [{"role": "user", "content": "[img-1]"}]}),
        (completions, {"prompt": "[img-1]", "echo": True}),
    ],
)
def test_images_are_refused_where_they_have_no_place(read_body: Any, body: dict[str, Any]) -> None:
    with pytest.raises(NotSupported):
        read_body(body | {"image_data": tagged(1)})


def test_an_array_is_split_into_prompts_with_their_own_images() -> None:
    prompts = ["[img-1][img-2]", "none", [5, 6], "[img-2]"]
    ask = completion({"prompt": prompts, "image_data": tagged(1, 2)})
    placed = ask.with_images([Image(data=picture.data) for picture in ask.album.pictures])
    requests = placed.split()
    assert [request.media and [image.data for image in request.media.images] for request in requests] == [  # type: ignore[union-attr]
        ["1", "2"],
        None,
        None,
        ["2"],
    ]
    assert isinstance(placed.request, Completion) and placed.request.media is not None
    assert placed.request.media.mark == ask.album.mark and len(placed.request.media.images) == 3


def test_what_is_kept_of_a_body_has_no_file_in_it_and_still_tells_pictures_apart() -> None:
    def kept(*files: str) -> str:
        body = {
            **says(text("see"), *[part(f"{DATA}{file}") for file in files], part("https://x/y")),
            "metadata": {"seen": [files[0]], "n": 1},
        }
        return json.dumps(without_files(body, chat(body).album))

    one, other, again = kept("A" * 1000, "B" * 1000), kept("A" * 1000, "C" * 1000), kept("A" * 1000, "B" * 1000)
    assert one == again != other
    assert "AAAA" not in one and len(one) < 800
    assert shown(chat(json.loads(one)))[0] == ["see***"]
    assert shown(chat(json.loads(one)))[1][2] == "https://x/y"


def test_a_rendered_template_shows_where_images_stand() -> None:
    ask = apply_template(says(text("a"), part(f"{DATA}1")))
    rendered = Text(text=f"<user>a{ask.album.mark}</user>")
    shape = ask.shape(None)  # type: ignore[arg-type]
    assert shape.body([Finished(status="succeeded", parts=(rendered,))]) == {"prompt": "<user>a<__media__></user>"}
