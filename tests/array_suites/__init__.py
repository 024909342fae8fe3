"""SciPy's and scikit-learn's own array API tests with GT's namespace beside `array_api_strict`: `make array-suites`."""
