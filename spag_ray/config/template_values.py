"""What a run may give a chat template besides the messages (`chat_template_kwargs`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

# What apply_chat_template is called with, or takes for itself.
_OURS = {
    *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"),
}


def _checked(given: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    if ours := sorted(_OURS & given.keys()):
        raise ValueError(f"{ours[0]} is no value of a template: it is set where prompts are rendered")
    return given


TemplateValues = Annotated[dict[str, bool | int | float | str], AfterValidator(_checked)]
