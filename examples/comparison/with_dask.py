"""python with_dask.py"""

import dask
import dask.array as da
from distributed import Client
from problem import FIRST, RATE, SECOND, STEPS, X, Y, show


def main() -> None:
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        x, y = (da.from_array(array, chunks=(256, -1)).persist() for array in (X, Y))
        first, second = FIRST, SECOND

        product = (x @ first).compute()  # 256 rows a task

        losses = []
        for _ in range(STEPS):  # no gradients: they are written by hand
            before = x @ first
            hidden = da.maximum(before, 0)
            wrong = hidden @ second - y
            loss = (wrong**2).mean()
            back = 2 * wrong / wrong.size
            to_second = hidden.T @ back
            to_first = x.T @ ((back @ second.T) * (before > 0))
            loss, to_first, to_second = dask.compute(loss, to_first, to_second)
            first, second = first - RATE * to_first, second - RATE * to_second
            losses.append(float(loss))
        show(product, losses)


if __name__ == "__main__":
    main()
