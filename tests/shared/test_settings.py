"""Where settings come from, which source wins, and what a person is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.overrides import MetadataOverride
from shared.settings import (
    ROLES,
    ApiSettings,
    ConfigError,
    Flag,
    RunSettings,
    ServeSettings,
    Settings,
    WorkerSettings,
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a settings file, and no variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLOTSTREAM_CONFIG", raising=False)
    return tmp_path


def from_flags(cls: type[Settings], *argv: str) -> Settings:
    return cls.from_command_line(argv, prog="slotstream x", description="")


def test_flags_win_over_variables_and_these_over_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "slotstream.toml").write_text("port = 1\nhost = 'a'\n[api]\nhost = 'b'\nkeep_alive_s = 3\n")
    monkeypatch.setenv("SLOTSTREAM_PORT", "2")
    assert ApiSettings.load().port == 2
    settings = from_flags(ApiSettings, "--port", "3")
    assert isinstance(settings, ApiSettings)
    assert (settings.port, settings.host, settings.keep_alive_s) == (3, "b", 3.0)


def test_a_table_is_for_its_role_alone(elsewhere: Path) -> None:
    (elsewhere / "slotstream.toml").write_text("[worker]\nparallel = 3\n[serve]\nparallel = 5\n")
    assert WorkerSettings.load().parallel == 3
    assert ServeSettings.load().parallel == 5


@pytest.mark.parametrize("more", [{}, {"input": "a", "output": "b"}], ids=["serve", "run"])
def test_whoever_starts_a_worker_finds_its_table(elsewhere: Path, more: dict[str, str]) -> None:
    table = "model = 'below.gguf'\nparallel = 3\nlog_level = 'debug'\n"
    (elsewhere / "slotstream.toml").write_text(f"model = 'top.gguf'\n[worker]\n{table}")
    settings = RunSettings.load(**more) if more else ServeSettings.load()
    assert (settings.model, settings.parallel) == ("below.gguf", 3)
    assert settings.log_level == "info", "other roles would have it too"


def test_the_names_are_those_of_llama_server() -> None:
    argv = "-m x.gguf -a name -c 4096 -np 4 -b 512 -ub 256 -t 3 -tb 2 -ngl 7 -fa on -ctk q8_0 -ctv q4_0".split()
    settings = from_flags(WorkerSettings, *argv)
    assert isinstance(settings, WorkerSettings)
    assert (settings.model, settings.alias, settings.ctx_size, settings.parallel) == ("x.gguf", "name", 4096, 4)
    assert (settings.batch_size, settings.ubatch_size, settings.threads, settings.threads_batch) == (512, 256, 3, 2)
    assert (settings.n_gpu_layers, settings.flash_attn) == (7, "on")
    assert (settings.cache_type_k, settings.cache_type_v) == ("q8_0", "q4_0")


def test_images_have_the_names_of_llama_server() -> None:
    argv = "-mm p.gguf --no-mmproj --no-mmproj-offload --image-min-tokens 4 --image-max-tokens 9".split()
    settings = from_flags(WorkerSettings, *argv)
    assert isinstance(settings, WorkerSettings)
    assert (settings.mmproj, settings.mmproj_auto, settings.mmproj_offload) == (Path("p.gguf"), False, False)
    assert (settings.image_min_tokens, settings.image_max_tokens) == (4, 9)
    switched_on = from_flags(WorkerSettings, "--mmproj", "p.gguf", "--mmproj-auto")
    assert isinstance(switched_on, WorkerSettings) and switched_on.mmproj_auto


@pytest.mark.parametrize(
    ("cls", "argv", "said"),
    [
        (WorkerSettings, ["-np", "0"], "--parallel: input should be greater than or equal to 1"),
        (WorkerSettings, ["-c", "many"], "--ctx-size: input should be a valid integer"),
        (WorkerSettings, ["-fa", "maybe"], "--flash-attn: input should be 'on', 'off' or 'auto'"),
        (ApiSettings, ["--port", "70000"], "--port: input should be less than or equal to 65535"),
        (ApiSettings, ["--retention-s", "inf"], "--retention-s: input should be less than or equal to 315360000"),
        (ApiSettings, ["--log-retention-s", "1e300"], "--log-retention-s: input should be less than or equal to 3153"),
        (ApiSettings, ["--max-body-mb", "inf"], "--max-body-mb: input should be less than or equal to 100000"),
        (ApiSettings, ["--prot", "1"], "unrecognized arguments: --prot 1"),
        (ApiSettings, ["--config", "missing.toml"], "cannot read missing.toml"),
        (ApiSettings, ["--api-key", ""], "--api-key: must not be empty"),
        (ApiSettings, ["--allow-hosts", "10.0.0.0/33"], "--allow-hosts: 10.0.0.0/33 is neither"),
        (ApiSettings, ["--allow-hosts", "a:80"], "--allow-hosts: a:80 is neither"),
        (ApiSettings, ["--allow-hosts", "10.0.0"], "--allow-hosts: 10.0.0 is neither"),
        (RunSettings, ["in.jsonl"], "--output is needed"),
        (RunSettings, [], "INPUT"),
    ],
)
def test_a_wrong_flag_is_one_sentence_that_names_it(
    cls: type[Settings], argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        from_flags(cls, *argv)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert said in error and error.startswith("slotstream x: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prot = 1", "no setting is named 'prot'"),
        ("[api]\nmodel = 'x'", "[api] has no setting 'model'"),
        ("port = ", "is not valid TOML"),
        ("worker = 5", "worker must be a table, [worker]"),
        ("port = 'x'", "other.toml: port: input should be a valid integer"),
        ('host = "a\\u0000b"', "other.toml: host: must not have a NUL in it"),
        ('allow_hosts = ["a", "a\\u0000b"]', "other.toml: allow_hosts: must not have a NUL in it"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(elsewhere: Path, content: str, said: str) -> None:
    path = elsewhere / "other.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        ApiSettings.load(str(path))
    assert said in str(raised.value)


@pytest.mark.parametrize("secret", ["sesame", "whsec_sesame", "whsec_", f"whsec_{'A' * 28}", "c2VzYW1l" * 5])
def test_a_secret_that_cannot_sign_is_refused_at_the_start_and_not_repeated(secret: str) -> None:
    for cls in (ApiSettings, ServeSettings):
        with pytest.raises(ConfigError, match="must be whsec_ and the base64 of 24 to 64 bytes") as raised:
            cls.load(webhook_secret=secret)
        assert secret == "whsec_" or secret not in str(raised.value)
    assert ApiSettings.load(webhook_secret=f"whsec_{'A' * 32}").webhook_secret


def test_secrets_are_never_printed() -> None:
    settings = ServeSettings.load(api_key=["sesame"], redis_url="redis://:sesame@h")
    assert "sesame" not in f"{settings!r} {settings}"


def test_what_a_supervisor_was_told_reaches_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ServeSettings.load(api_key=["a", "b"], redis_url="redis://:p@h", parallel=3, flash_attn="on", port=9)
    for name, value in told.to_environment().items():
        monkeypatch.setenv(name, value)
    api, worker = ApiSettings.load(), WorkerSettings.load()
    assert [key.get_secret_value() for key in api.api_key] == ["a", "b"]
    assert (api.port, api.redis_url.get_secret_value()) == (9, "redis://:p@h")
    assert (worker.parallel, worker.flash_attn) == (3, "on")


@pytest.mark.parametrize("value", ["a,b", " a , b ", "a,,b"])
def test_several_keys_fit_into_one_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_API_KEY", value)
    assert [key.get_secret_value() for key in ApiSettings.load().api_key] == ["a", "b"]


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_API_KEYS", "a")
    with pytest.raises(ConfigError, match="no setting is named SLOTSTREAM_API_KEYS"):
        ApiSettings.load()


@pytest.mark.parametrize("how", ["flag", "variable", "file", "table"])
def test_whoever_is_wrong_is_named_also_where_settings_contradict_each_other(
    how: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["-b", "2"] if how == "flag" else []
    place = {"flag": "--batch-size", "variable": "SLOTSTREAM_BATCH_SIZE", "file": "slotstream.toml: batch_size"}
    if how in ("flag", "variable"):  # the flag's is another, and does not count
        monkeypatch.setenv("SLOTSTREAM_BATCH_SIZE", "2" if how == "variable" else "512")
    else:
        table = "[worker]\n" if how == "table" else ""
        (elsewhere / "slotstream.toml").write_text(f"{table}batch_size = 2\n")
    with pytest.raises(SystemExit):
        from_flags(WorkerSettings, "-np", "4", *argv)
    named = place.get(how, "slotstream.toml: [worker] batch_size")
    assert capsys.readouterr().err == f"slotstream x: {named} is 2, and must be at least --parallel, 4\n"


def test_a_child_blames_the_place_where_its_supervisor_has_a_value_from(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "slotstream.toml").write_text("[worker]\nctx_size = 9\n")
    monkeypatch.setenv("SLOTSTREAM_PARALLEL", "4")
    told = ServeSettings.load(None, ubatch_size=3, model="x.gguf")
    (elsewhere / "slotstream.toml").unlink()
    for name, value in told.to_environment().items():
        monkeypatch.setenv(name, value)
    child = WorkerSettings.load()
    assert (child.ctx_size, child.parallel, child.ubatch_size) == (9, 4, 3)
    assert (
        child.blame("--ctx-size, --parallel, --ubatch-size, --batch-size and --no-such-thing")
        == "slotstream.toml: [worker] ctx_size, SLOTSTREAM_PARALLEL, --ubatch-size, --batch-size and --no-such-thing"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-ctv", "q8_0", "-fa", "off"], "--cache-type-v q8_0 needs flash attention, and --flash-attn is off"),
        (["--rope-scale", "2", "--rope-freq-scale", "0.5"], "--rope-scale and --rope-freq-scale exclude each other"),
        (["--rope-freq-base", "nan"], "--rope-freq-base: input should be"),
        (["--rope-scale", "0"], "--rope-scale: input should be greater than 0"),
        (["--load-mode", "mmap", "--mlock"], "--load-mode says all that --mlock and --mmap do"),
        (["--chat-template", "a", "--chat-template-file", "b"], "exclude each other"),
        (["--no-jinja"], "--no-jinja is not possible"),
        (["-ts", "1,-1"], "--tensor-split: a proportion must be a number from 0 on"),
        (["-ts", "nan"], "--tensor-split: a proportion must be a number from 0 on"),
        (["-ts", "0,0"], "--tensor-split: one proportion at least must be more than 0"),
        (["-ts", "many"], "--tensor-split: input should be a valid number"),
        (["-ot", "blk"], "--override-tensor: 'blk' must be PATTERN=BUFFER"),
        (["-c", "99999999999"], "--ctx-size: input should be less than or equal to 2147483647"),
        (["-ctk", "q9_9"], "--cache-type-k: input should be 'f32'"),
    ],
)
def test_what_llama_cpp_could_not_do_is_one_sentence(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        from_flags(WorkerSettings, *argv)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert said in error and error.startswith("slotstream x: ") and error.count("\n") == 1


def test_loading_has_the_names_of_llama_server() -> None:
    argv = """-sm row -ts 3,1 -mg 1 -dev a,b -ot x=CPU,y=CPU -cmoe -ncmoe 3 -nkvo --mlock --no-mmap --numa isolate
    --override-kv a=int:1,b=bool:true --override-kv c=str:x --check-tensors --rope-scaling yarn --rope-scale 4
    --yarn-orig-ctx 8 --swa-full --no-warmup --jinja -ngl all""".split()
    settings = from_flags(WorkerSettings, *argv)
    assert isinstance(settings, WorkerSettings)
    assert (settings.split_mode, settings.tensor_split, settings.main_gpu) == ("row", (3.0, 1.0), 1)
    assert (settings.device, settings.override_tensor) == (("a", "b"), ("x=CPU", "y=CPU"))
    assert (settings.cpu_moe, settings.n_cpu_moe, settings.kv_offload) == (True, 3, False)
    assert (settings.mlock, settings.mmap, settings.numa, settings.check_tensors) == (True, False, "isolate", True)
    assert settings.override_kv == ("a=int:1", "b=bool:true", "c=str:x")
    assert (settings.rope_scaling, settings.rope_scale, settings.yarn_orig_ctx) == ("yarn", 4.0, 8)
    assert (settings.swa_full, settings.warmup, settings.n_gpu_layers) == (True, False, -1)


def test_a_list_reaches_a_child_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    told = WorkerSettings.load(override_kv=['"a=str:x,y"', 'b=str:say "hi"'], tensor_split="3/1")
    assert told.override_kv == ("a=str:x,y", 'b=str:say "hi"')
    for name, value in told.to_environment().items():
        monkeypatch.setenv(name, value)
    child = WorkerSettings.load()
    assert (child.override_kv, child.tensor_split) == (told.override_kv, (3.0, 1.0))


def test_a_list_may_stand_in_the_file(elsewhere: Path) -> None:
    (elsewhere / "slotstream.toml").write_text("tensor_split = [3, 1]\noverride_kv = ['a=int:1', 'b=bool:true']\n")
    settings = WorkerSettings.load()
    assert (settings.tensor_split, settings.override_kv) == ((3.0, 1.0), ("a=int:1", "b=bool:true"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("key", "must be KEY=TYPE:VALUE"),
        ("key=5", "must be KEY=TYPE:VALUE"),
        ("=int:5", "must have a key of 1 to 127 bytes"),
        (f"{'k' * 128}=int:5", "must have a key of 1 to 127 bytes"),
        ("key=int:5.5", "'5.5' is no int"),
        (f"key=int:{2**63}", "is no int"),
        ("key=float:inf", "'inf' is no float"),
        ("key=bool:yes", "'yes' is no bool"),
        (f"key=str:{'é' * 64}", "a str has at most 127 bytes"),
        ("key=list:1", "'list' is none of int, float, bool, str"),
    ],
)
def test_an_override_that_is_none_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        WorkerSettings.load(override_kv=("a=int:1", text))
    assert str(refusal.value).startswith("--override-kv: ") and text in str(refusal.value)
    assert said in str(refusal.value)


def test_the_longest_key_and_text_are_taken() -> None:
    assert MetadataOverride.parse(f"{'k' * 127}=str:{'v' * 127}") == MetadataOverride("k" * 127, "v" * 127)
    assert MetadataOverride.parse("a=str:b=c:d").value == "b=c:d"


@pytest.mark.parametrize("role", ["worker", "serve", "run", "api"])
def test_the_help_has_a_heading_for_each_kind_of_setting(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        from_flags(ROLES[role], "--help")
    text = capsys.readouterr().out
    headings = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    assert ("model" in headings) == (role != "api") and "queue and log" in headings
    assert ("Exit codes:" in text) == (role != "api")
    assert len(headings) == len(set(headings))


def test_a_wrong_variable_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_PORT", "x")
    with pytest.raises(ConfigError, match="SLOTSTREAM_PORT: input should be a valid integer"):
        ApiSettings.load()


@pytest.mark.parametrize("role", ROLES)
def test_a_fields_name_is_its_long_flag(role: str) -> None:
    """So that variable and key can be told from the flag."""
    for name, field in ROLES[role].model_fields.items():
        [flag] = [item for item in field.metadata if isinstance(item, Flag)]
        assert flag.names[-1] in (name, f"--{name.replace('_', '-')}")


@pytest.mark.parametrize("role", ROLES)
def test_help_names_every_flag(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        from_flags(ROLES[role], "--help")
    assert left.value.code == 0
    text = capsys.readouterr().out
    flags = [item for field in ROLES[role].model_fields.values() for item in field.metadata if isinstance(item, Flag)]
    assert "--config" in text
    [(named, variable, key)] = re.findall(r"^(--\S+) is (\S+) and (\S+)\.$", text, re.MULTILINE)
    assert named in [name for flag in flags for name in flag.names]
    assert key in ROLES[role].model_fields and variable == f"SLOTSTREAM_{key.upper()}"
    assert [name for flag in flags for name in flag.names if name not in text] == []
    assert "(default: )" not in " ".join(text.split())


def test_hosts_come_as_names_addresses_and_networks() -> None:
    settings = from_flags(ApiSettings, "--allow-hosts", "files.internal,10.0.0.0/8", "--allow-hosts", "fd00::1")
    assert isinstance(settings, ApiSettings)
    assert settings.allow_hosts == ("files.internal", "10.0.0.0/8", "fd00::1")


def test_a_variable_that_other_programs_know_weighs_least(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://a")
    assert WorkerSettings.load().hf_endpoint == "http://a"
    monkeypatch.setenv("MODEL_ENDPOINT", "http://b")
    assert WorkerSettings.load().hf_endpoint == "http://b"
    (elsewhere / "slotstream.toml").write_text("hf_endpoint = 'http://c'\n")
    assert WorkerSettings.load().hf_endpoint == "http://c"
    monkeypatch.setenv("SLOTSTREAM_HF_ENDPOINT", "http://d")
    assert WorkerSettings.load().hf_endpoint == "http://d"


def test_a_token_of_the_hub_goes_on_to_children_and_into_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    settings = ServeSettings.load()
    assert settings.to_environment()["SLOTSTREAM_HF_TOKEN"] == "hf_secret"
    assert "hf_secret" not in repr(settings)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["-m", "a.gguf", "-hf", "a/b"], "--model and --hf-repo exclude each other"),
        (["-hf", "a/b", "-mu", "http://a/b.gguf"], "--hf-repo and --model-url exclude each other"),
        (["-m", "a.gguf", "-hff", "b.gguf"], "--hf-file is of no use without --hf-repo"),
        (["-hf", "a/b", "--model-sha256", "0" * 64], "--model-sha256 is of no use without --model-url"),
        (["-mu", "http://a/b", "--model-sha256", "abc"], "--model-sha256: string should match"),
        (["-mm", "a.gguf", "-mmu", "http://a"], "--mmproj and --mmproj-url exclude each other"),
        (
            ["-c", "8", "-np", "8"],
            "--ctx-size 8 leaves 1 tokens to each of the 8 slots of --parallel, and each needs 2",
        ),
        (["-c", "4"], "raise -c or lower -np"),
        (["--rerank", "--pooling", "mean"], "--rerank and --pooling mean exclude each other"),
    ],
)
def test_what_names_a_thing_twice_or_not_at_all_is_said(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        from_flags(WorkerSettings, *argv)
    assert said in capsys.readouterr().err
