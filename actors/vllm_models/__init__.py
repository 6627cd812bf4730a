"""Model classes for vLLM, registered through its plug-in interface.

Tests of other names: alibi_llama, plugin in test_alibi_llama.py.
"""
