"""What runs against a real model server: `make test-model`, `make test-vllm`, `make recordings`.

Plain `make test` checks its types and its style and collects none of it (`conftest.py`).
"""
