"""How sample.bin was made; run where torch is installed. ``b`` is 0, 1/8, 2/8, ..."""

from collections import OrderedDict

import torch

b = torch.arange(24, dtype=torch.float32) / 8
table = b.reshape(4, 6)
state = OrderedDict(
    f64=b[:4].double(),
    f32=table,
    f16=b[:6].half().reshape(2, 3),
    bf16=b[:6].bfloat16(),
    i64=torch.arange(3),
    i8=torch.arange(3, dtype=torch.int8),
    bool=torch.tensor([True, False]),
    transposed=table.t(),
    part=table[1:3, 2:4],
    column=table[:, 1],
    scalar=torch.tensor(2.5),
    parameter=torch.nn.Parameter(b[:2]),
    empty=torch.zeros(0, 3),
)
state._metadata = OrderedDict(version=1)
torch.save(state, "sample.bin")
