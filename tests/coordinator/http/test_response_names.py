"""From what a client calls a response to the id of its record."""

from coordinator.http.response_names import ResponseNames


def test_the_newest_response_of_a_name_is_found() -> None:
    names = ResponseNames()
    assert names.named("1", None) == "1"
    assert names.named("2", "mine") == "mine"
    assert names.named("3", "mine") == "mine"
    assert names.request_id("mine") == "3"
    assert names.request_id("mine-4") == "3-4", "a choice of several"
    for other in ("1", "other", "mine-x", "-1"):
        assert names.request_id(other) == other


def test_a_name_that_ends_like_a_choice_is_a_name() -> None:
    names = ResponseNames()
    names.named("1", "run-7")
    assert names.request_id("run-7") == "1"
    assert names.request_id("run-7-0") == "1-0"


def test_a_name_is_found_whatever_it_begins_with() -> None:
    names = ResponseNames()
    for number, name in enumerate(["chatcmpl-1", "cmpl-1", "2", "chatcmpl-2", "a/b"]):
        names.named(f"id{number}", name)
    assert names.request_id("chatcmpl-chatcmpl-1") == "id0"
    assert names.request_id("chatcmpl-1") == "id0", "of /v1/responses, whose ids have no name"
    assert names.request_id("chatcmpl-cmpl-1") == "id1"
    assert names.request_id("chatcmpl-2") == names.request_id("msg_2") == "id2"
    assert names.request_id("chatcmpl-chatcmpl-2-0") == "id3-0"
    assert names.request_id("cmpl-a/b") == "id4"
    assert names.request_id("resp_other") == "other"


def test_only_the_last_names_are_kept() -> None:
    names = ResponseNames(max_names=2)
    for number in range(4):
        names.named(f"id{number}", f"name{number}")
    assert [names.request_id(f"name{n}") for n in range(4)] == ["name0", "name1", "id2", "id3"]
