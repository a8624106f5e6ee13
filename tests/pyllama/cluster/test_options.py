"""Options of a cluster from texts, and Ray's arguments that follow; no Ray."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("starlette")

from pyllama.cluster.options import ClusterOptions, ReplicaOptions
from pyllama.errors import ClusterError


def test_arguments_of_serve_run() -> None:
    given = {"model": "d/x.gguf", "replicas": "2", "parallel": "3", "ctx_size": "99"}
    options = ClusterOptions.from_arguments({**given, "threads": "2", "api_key": "k,l"})
    assert options.replica.models == {"x.gguf": "d/x.gguf"}
    assert options.replica.context["n_ctx"] == 99 and options.replica.n_slots == 3
    assert options.replica.server.api_keys == ("k", "l")
    config = options.engine_config()
    assert (config["num_replicas"], config["max_ongoing_requests"]) == (2, 6)
    assert config["ray_actor_options"] == {"num_cpus": 2.0}
    assert options.router is not None and "ConsistentHash" in options.router


def test_several_models_and_scaling() -> None:
    options = ClusterOptions.from_arguments(
        {"model": {"a": "x", "b": "y"}, "max_replicas": 5, "target_requests": 1.5, "upscale_s": 2}
    )
    scaling = options.engine_config()["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 5)
    assert (scaling["target_ongoing_requests"], scaling["upscale_delay_s"]) == (1.5, 2)
    assert options.replica.default == "a" and options.router is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "no model"),
        ({"model": "x", "replica": 2}, "unknown argument 'replica'"),
        ({"model": "x", "replicas": "two"}, "replicas is 'two', not a int"),
        ({"model": "x", "replicas": 0}, "at least 1"),
        ({"model": "x", "replicas": 3, "max_replicas": 2}, "less than the 3"),
        ({"model": "x", "api_key": ""}, "empty key"),
        ({"model": "x", "api_key": "a,"}, "empty key"),
        ({"model": "x", "route": "random"}, "choose one of prefix, load"),
    ],
)
def test_illegal_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ClusterError, match=text):
        ClusterOptions.from_arguments(arguments)


def test_the_example_for_ray_serve() -> None:
    root = Path(__file__).resolve().parents[3]
    example = yaml.safe_load((root / "docs/examples/cluster/serve.yaml").read_text())
    (application,) = example["applications"]
    module, _, builder = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), builder))
    options = ClusterOptions.from_arguments(application["args"])
    assert (options.n_replicas, options.max_replicas, options.n_cpus) == (2, 8, 16)
    assert "resources" not in options.ingress_config()["ray_actor_options"]


def test_options_can_be_sent_to_processes() -> None:
    options = ClusterOptions(ReplicaOptions({"a": "x"}))
    assert pickle.loads(pickle.dumps(options)) == options
