"""Hugging Face's architectures on the device and by the backend: `make torch-zoo`."""
