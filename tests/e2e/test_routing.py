"""Two workers: equal images meet on one, others spread, and a worker that dies takes along what it held."""

import json

import pytest

import chat
import tiny_model
from harness import Vllm, free_port, nixl_lib_dir, until
from pictures import data_uri, drawing, encode, image, text

BLOCK = 32


@pytest.fixture(scope="module")
def fleet():
    # Before both of them would make it at once.
    tiny_model.ensure()
    workers = [Vllm(f"vllm-routing-{number}", flags=kv_events()) for number in (1, 2)]
    yield [worker.ready() for worker in workers]
    for worker in workers:
        worker.stop()


@pytest.fixture(scope="module")
def router(fleet, start_gateway):
    flags = ["--nixl-lib-dir", str(nixl_lib_dir()), "--route-policy", "mm-kv"]
    flags += ["--model-path", str(tiny_model.ensure())]
    gateway = start_gateway("gateway-routing", [worker.url for worker in fleet], *flags).ready()
    gateway.wait_until_attached()
    return gateway


@pytest.fixture(scope="module")
def by_url(fleet, start_gateway):
    """A gateway that does not touch pixels: the workers fetch, and name images by what they got."""
    flags = ["--route-policy", "mm-kv", "--model-path", str(tiny_model.ensure()), "--image-size-timeout-ms", "60000"]
    return start_gateway("gateway-by-url", [worker.url for worker in fleet], *flags, frontend_decoding=False).ready()


def kv_events() -> tuple[str, ...]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{free_port()}",
        "replay_endpoint": f"tcp://*:{free_port()}",
    }
    return ("--kv-events-config", json.dumps(config), "--enable-prompt-tokens-details")


def ask(gateway, parts: list[dict]) -> tuple[int, dict[str, str]]:
    """Which worker answered, why it was chosen."""
    answer = chat.post(gateway.url, parts, headers={"x-mediagate-debug": "1"})
    assert answer.status_code == 200, answer.text
    route = dict(pair.split("=", 1) for pair in answer.headers["x-mediagate-route"].split("; "))
    return int(route["worker"]), route


def hits(worker) -> float:
    return worker.metrics().get("vllm:prefix_cache_hits_total", 0.0)


def test_equal_images_meet_on_one_worker_and_hit_its_prefix_cache(fleet, router, files):
    pixels = drawing(60)
    png, tiff = encode(pixels, "PNG"), encode(pixels, "TIFF")
    forms = [
        files.put("/routing/a.png", png, "image/png"),
        files.put("/routing/another-name.png", png, "image/png"),
        files.put("/routing/a.tiff", tiff, "image/tiff"),
        data_uri(png, "PNG"),
    ]
    first, _ = ask(router, [image(forms[0]), text("What is in the picture?")])
    for form in forms[1:]:
        before = hits(fleet[first])
        worker, route = ask(router, [image(form), text("What is in the picture?")])
        assert worker == first, route
        assert route["reason"] in ("overlap", "media")
        assert hits(fleet[first]) - before >= 3 * BLOCK


def test_cold_images_spread_over_both(router):
    routes = []
    # Which worker a picture belongs to is a matter of chance, since workers have other ports each time. That of so many
    # all but two belong to the same is none.
    for seed in range(200, 240):
        uri = data_uri(encode(drawing(seed), "PNG"), "PNG")
        routes.append(ask(router, [image(uri), text("What is in the picture?")]))
        workers = [worker for worker, _ in routes]
        if min(workers.count(0), workers.count(1)) > 2:
            return
    raise AssertionError(routes)


def test_what_is_predicted_is_what_the_worker_says(router):
    before = router.metrics()
    uri = data_uri(encode(drawing(90), "PNG"), "PNG")
    for _ in range(3):
        ask(router, [image(uri), text("What is in the picture?")])
    after = router.metrics()

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    prompt = grown("mediagate_route_prompt_tokens_total")
    cached, predicted = grown("mediagate_route_cached_tokens_total"), grown("mediagate_route_predicted_tokens_total")
    # vLLM computes the last block of a prompt again even where it has it.
    assert prompt > 0
    assert abs(predicted - cached) <= 3 * BLOCK + 0.05 * prompt, (prompt, cached, predicted)


def test_an_image_by_url_is_found_under_the_name_that_its_worker_has_for_it(fleet, by_url, files):
    def eventually(name: str, value: float) -> None:
        until(f"{value} of {name}", lambda: by_url.metrics().get(name, 0.0) >= value)

    eventually("mediagate_kv_view_completeness", 4)
    names = "mediagate_kv_image_names_total"
    for seed in (100, 101):
        # The second time there is another picture behind the URL, and the worker finds out.
        url = files.put("/routing/by-url.png", encode(drawing(seed), "PNG"), "image/png")
        learned = by_url.metrics().get(names, 0.0)
        first, _ = ask(by_url, [image(url), text("What is in the picture?")])
        eventually(names, learned + 1)
        before, held = by_url.metrics(), hits(fleet[first])
        worker, route = ask(by_url, [image(url), text("Is there anything else in it?")])
        assert (worker, route["reason"]) == (first, "overlap"), route
        # By the worker's own events, image included.
        assert int(route["told"]) >= 3 * BLOCK, route
        assert hits(fleet[first]) - held >= int(route["told"]) - BLOCK
        after = by_url.metrics()
        cached = after["mediagate_route_cached_tokens_total"] - before.get("mediagate_route_cached_tokens_total", 0.0)
        assert abs(cached - int(route["told"])) <= BLOCK, (cached, route)


def test_a_killed_worker_takes_along_what_it_held(fleet, router):
    uri = data_uri(encode(drawing(95), "PNG"), "PNG")
    owner, _ = ask(router, [image(uri), text("What is in the picture?")])
    until("what it holds to be known", lambda: router.metrics().get("mediagate_kv_known_blocks", 0.0) > 0)
    fleet[owner].stop(seconds=0)
    other, route = ask(router, [image(uri), text("What is in the picture?")])
    assert other == 1 - owner
    assert route["overlap"] == "0"
    # One worker is left, and all that is known is of it.
    again, route = ask(router, [image(uri), text("What is in the picture?")])
    assert again == other
