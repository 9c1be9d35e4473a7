"""The forms in which people write a sandbox's address."""

import pytest

from coderl_tasks.errors import ConfigError
from coderl_tasks.server_addresses import authorization, sandbox_addresses, without_credentials

LOCAL = "http://localhost:8080"


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ()),
        (" , ,", ()),
        (LOCAL, (LOCAL,)),
        (f"{LOCAL}/", (LOCAL,)),
        (f"{LOCAL}/run_code", (LOCAL,)),
        (f" {LOCAL}/run_code/ \n", (LOCAL,)),
        (f"{LOCAL}//run_code", (LOCAL,)),
        ("HTTP://LocalHost:8080/run_code", (LOCAL,)),
        ("http://a:80", ("http://a",)),
        ("https://a:443/run_code", ("https://a",)),
        ("https://a:80", ("https://a:80",)),
        ("http://a:", ("http://a",)),
        ("https://gateway/team/run_code", ("https://gateway/team",)),
        ("https://gateway/team/run_code_v2", ("https://gateway/team/run_code_v2",)),
        ("http://[::1]:8080/run_code", ("http://[::1]:8080",)),
        ("http://user:p%40ss@a:8080/run_code", ("http://user:p%40ss@a:8080",)),
        ("http://a:1, http://b:2/run_code", ("http://a:1", "http://b:2")),
        (f"{LOCAL},{LOCAL}/run_code,{LOCAL}/,http://b", (LOCAL, "http://b")),
        ("http://user:pass@a:1,http://a:1/run_code", ("http://user:pass@a:1",)),
    ],
)
def test_every_form_of_an_address_means_the_server(text: str, addresses: tuple[str, ...]) -> None:
    assert sandbox_addresses([text]) == addresses
    assert sandbox_addresses(text.split(",")) == addresses
    assert sandbox_addresses(addresses) == addresses


@pytest.mark.parametrize(
    "text",
    [
        "localhost:8080",
        "localhost:8080/run_code",
        "foo",
        "ftp://a",
        "http://",
        "http:///run_code",
        "http://:8080",
        "http://a:port",
        "http://a:65536",
        "http://a:0",
        "http://a:-1",
        "http://[::1",
        "http://a b:8080",
        "http://a:1 http://b:2",
        "http://a/run_code?token=x",
        "http://a/#run_code",
        f"{LOCAL},foo",
        "http://a..b:8080",
        f"http://{'a' * 64}:8080",
        "http://a:b\r\nX-Other: 1@c:8080",
        "http://loc\x01alhost",
        "http://localhost/\0",
        "http://\udcff",
        "http://\u202elocalhost",
    ],
)
def test_what_is_no_address_is_one_line_that_names_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^SANDBOX_URL: '[^\n]+$"):
        sandbox_addresses([text])


def test_a_password_is_sent_and_not_shown() -> None:
    assert without_credentials("http://user:p%40ss@a:1/x@y") == "http://a:1/x@y"
    assert without_credentials(LOCAL) == LOCAL
    assert authorization("http://user:p%40ss@a:1") == {"Authorization": "Basic dXNlcjpwQHNz"}
    assert authorization(LOCAL) == {}
    with pytest.raises(ConfigError) as caught:
        sandbox_addresses(["http://user:secret@a:port"])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:secret@a:port",
        "http://user:se@cret@a:port",
        "http://user:se/cret@a:1",
        "http://user:1/secret@a",
        "http://user:se?cret@a:1",
        "http://user:se#cret@a:1",
        "http://user:secret,cret@a:1",
        "http://user:secret@a:1/run_code?x=1",
        "ftp://user:secret@a",
        "http://user:secret @a:1",
    ],
)
def test_no_part_of_a_password_is_shown_of_a_malformed_address(text: str) -> None:
    for check in (lambda: sandbox_addresses([text]), lambda: sandbox_addresses(text.split(","))):
        with pytest.raises(ConfigError, match=r"^SANDBOX_URL: ") as caught:
            check()
        assert "cret" not in str(caught.value)


def test_a_password_with_an_at_sign_is_cut_where_the_host_begins() -> None:
    assert without_credentials("http://user:p@ss@a:1/x@y") == "http://a:1/x@y"
    assert sandbox_addresses(["http://user:p@ss@a:1"]) == ("http://user:p@ss@a:1",)
