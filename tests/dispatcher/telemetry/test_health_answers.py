"""What probes are told, and that nothing is kept of them."""

from __future__ import annotations

from typing import Any

from one_dispatcher import Service

from gt.wire import messages as m

PLACE = {"host": "a", "namespace": "pid:[1]", "boot": "b"}


def asked(service: Service, **facts: Any) -> dict[str, Any]:
    service.hello("p", "prober", **facts)
    (welcome,) = service.hears("p", m.Welcome)
    return dict(welcome.facts)


def test_a_probe_counts_who_is_in_service_and_joins_nothing() -> None:
    service = Service(0, expected=2)
    service.join("w0")
    service.join("s", spare=True)
    assert asked(service) == {"epoch": 1, "service": 0, "workers": 1, "spares": 1, "expected": 2}
    assert not service.core.knows(b"p")
    assert b"p" not in service.core.subscribers.watchers
    service.join("w1")
    assert asked(service) == {"epoch": 1, "service": 0, "workers": 2, "spares": 1, "expected": 0}


def test_a_worker_is_found_by_number_and_by_its_process_namespace() -> None:
    service = Service(0)
    service.join("w0", **PLACE)
    service.join("w1", **{**PLACE, "namespace": "pid:[2]"})
    service.now = 2.5
    assert asked(service, worker=0)["worker"] == [0, 2500, "in service"]
    assert asked(service, worker={**PLACE, "namespace": "pid:[2]"})["worker"][0] == 1
    for none in (7, "0", True, None, {}, {**PLACE, "boot": "other"}, {**PLACE, "host": ["a"]}):
        assert asked(service, worker=none)["worker"] == []
