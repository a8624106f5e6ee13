"""Train ggml's MNIST networks: fully connected (fc) or convolutional (cnn).

    python docs/examples/train_mnist.py fc                       # scikit-learn's digits, 8 by 8
    python docs/examples/train_mnist.py cnn model.gguf           # ... and save the network
    python docs/examples/train_mnist.py cnn model.gguf FOLDER    # MNIST's four files
    python docs/examples/train_mnist.py picture losses.svg       # the losses of both networks

The saved file is one for docs/examples/digits.py. FOLDER has MNIST's train-images-idx3-ubyte and
its like, packed (.gz) or not.
"""

import gzip
import sys
from pathlib import Path

import numpy as np

import pyggml as ggml
from pyggml import opt
from pyggml.gguf import write_gguf
from pyggml.viz import Chart, charts_svg

# 1,797 images of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
# Learning Repository, 1998, CC BY 4.0; as sklearn.datasets.load_digits gives them
DIGITS = Path(__file__).parents[2] / "tests" / "data" / "digits" / "digits.npz"


def digits():
    """Images [n, height, width] from 0 to 1 and their digits, to train on and held out."""
    with np.load(DIGITS) as file:
        images = (file["images"] / 16).astype(np.float32)
        return opt.Dataset(images, file["labels"].astype(np.int32)).split(0.25)


def mnist(folder):
    """As ``digits``, of MNIST's files."""

    def read(name, header):
        path = next(p for p in (Path(folder, name), Path(folder, name + ".gz")) if p.exists())
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return np.frombuffer(data, np.uint8, offset=header)

    for part in ("train", "t10k"):
        images = read(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28)
        labels = read(f"{part}-labels-idx1-ubyte", 8).astype(np.int32)
        yield opt.Dataset((images / 255).astype(np.float32), labels)


def weights(shapes, backend, seed=0):
    """Trainable tensors by name: random matrices and kernels, biases of zeros."""
    rng, ctx = np.random.default_rng(seed), ggml.Context(no_alloc=True)
    tensors = {
        name: ctx.new_tensor(ggml.GGMLType.F32, shape[::-1]).set_name(name).set_param()
        for name, shape in shapes.items()
    }
    ggml.alloc_ctx_tensors(ctx, backend.buffer_type())
    for name, shape in shapes.items():
        scale = 0 if name.endswith("bias") else np.sqrt(2 / np.prod(shape[1:]))
        tensors[name].set(rng.normal(0, scale, shape))
    return tensors


def fully_connected(ctx, images, backend, hidden=128):
    """Two dense layers on [width, height, 1, n]."""
    n_pixels, n = images.ne[0] * images.ne[1], images.ne[3]
    w = weights(
        {
            "fc1.weight": (hidden, n_pixels),
            "fc1.bias": (hidden,),
            "fc2.weight": (10, hidden),
            "fc2.bias": (10,),
        },
        backend,
    )
    x = ggml.reshape_2d(ctx, images, n_pixels, n)
    x = ggml.add(ctx, ggml.mul_mat(ctx, w["fc1.weight"], x), w["fc1.bias"])
    x = ggml.relu(ctx, x)  # [hidden, n]
    return ggml.add(ctx, ggml.mul_mat(ctx, w["fc2.weight"], x), w["fc2.bias"])  # [10, n]


def convolutional(ctx, images, backend, channels=16):
    """Two convolutions, each followed by pooling, and a dense layer."""
    n_flat = (images.ne[0] // 4) * (images.ne[1] // 4) * 2 * channels
    w = weights(
        {
            "conv1.kernel": (channels, 1, 3, 3),
            "conv1.bias": (channels, 1, 1),
            "conv2.kernel": (2 * channels, channels, 3, 3),
            "conv2.bias": (2 * channels, 1, 1),
            "dense.weight": (10, n_flat),
            "dense.bias": (10,),
        },
        backend,
    )
    x = images  # [w, h, 1, n]
    for name in ("conv1", "conv2"):
        x = ggml.conv_2d(ctx, w[f"{name}.kernel"], x, p0=1, p1=1)  # [w, h, channels, n]
        x = ggml.relu(ctx, ggml.add(ctx, x, w[f"{name}.bias"]))
        x = ggml.pool_2d(ctx, x, "max", 2, 2)  # [w / 2, h / 2, channels, n]
    x = ggml.reshape_2d(ctx, x, n_flat, images.ne[3])
    return ggml.add(ctx, ggml.mul_mat(ctx, w["dense.weight"], x), w["dense.bias"])  # [10, n]


MODELS = {"fc": fully_connected, "cnn": convolutional}


def train(name, data, n_epoch=15, n_batch=32, callback=opt.progress_bar):
    """The trained network, and the results of each epoch."""
    known, held_out = data
    height, width = known.data.shape[1:]
    backend = ggml.init_backend("cpu")
    ctx = ggml.Context(no_alloc=True)
    inputs = ctx.new_tensor_2d(ggml.GGMLType.F32, width * height, n_batch)
    images = ggml.reshape_4d(ctx, inputs, width, height, 1, n_batch)
    outputs = MODELS[name](ctx, images, backend)
    n_steps = n_epoch * (len(known) // n_batch)
    optimizer = opt.AdamW(3e-3, wd=0.01, schedule=opt.warmup_cosine(n_steps // 20, n_steps))
    trainer = opt.OptContext(backend, ctx, inputs, outputs, opt.OptParams(optimizer=optimizer))
    return trainer, opt.fit(trainer, known, n_epoch, val=held_out, callback=callback)


def draw(path, data, n_epoch):
    """Train both networks, and draw their losses after each epoch."""
    charts = []
    for name in MODELS:
        _, results = train(name, data, n_epoch)
        chart = Chart(name, "epochs", "mean cross entropy")
        for i, part in enumerate(("training", "held out")):
            chart.line(range(1, n_epoch + 1), [result[i].loss for result in results], part)
        charts.append(chart)
    charts_svg(charts, path, title="Losses of train_mnist.py")


def main(name="fc", path=None, folder=None):
    """Train a network, and save it if there is a path."""
    data = digits() if folder is None else tuple(mnist(folder))
    n_epoch = 15 if folder is None else 5
    if name == "picture":
        draw(path, data, n_epoch)
        return
    trainer, results = train(name, data, n_epoch)
    print(f"{100 * results[-1][1].accuracy:.2f} % of {len(data[1])} held-out images are right")
    if path is not None:
        tensors = {key: np.array(w.numpy()) for key, w in trainer.params.items()}
        write_gguf(path, {}, tensors, arch=f"digits-{name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
