"""python with_gt.py"""

from problem import FIRST, RATE, SECOND, STEPS, X, Y, show

import gt

gt.init(workers=2, config={"sharding_config": {"batch": {"strategy": "data_parallel"}}})
x, y = gt.from_numpy(X), gt.from_numpy(Y)
first, second = (gt.nn.Parameter(gt.from_numpy(weight)) for weight in (FIRST, SECOND))
optimizer = gt.optim.SGD([first, second], lr=RATE)

with gt.signal.context("batch"):
    product = x @ first  # 256 rows on each worker

losses = []
for _ in range(STEPS):
    with gt.signal.context("batch"):
        loss = (((x @ first).relu() @ second - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.fetch())
show(product.detach().numpy(), [float(loss.result()) for loss in losses])
