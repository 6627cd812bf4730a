"""An adapter's configuration goes to processes without torch; the rest of the module is tested with vLLM
(tests/integration/test_adapters.py)."""

import json
from types import SimpleNamespace

import peft

from learners.lora import adapter_config


def test_a_configuration_is_read_where_peft_cannot_be_imported() -> None:
    settings = peft.LoraConfig(r=8, target_modules=["v_proj", "q_proj"], task_type="CAUSAL_LM")
    found = adapter_config(SimpleNamespace(peft_config={"default": settings}))
    assert {type(value).__module__ for value in found.values()} == {"builtins"}, "no member of an Enum of peft's"
    assert (found["peft_type"], found["r"], found["target_modules"]) == ("LORA", 8, ["q_proj", "v_proj"])
    assert json.loads(json.dumps(found)) == found
