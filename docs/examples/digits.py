"""Digit classifiers from a GGUF file, fully connected or convolutional.

    python docs/examples/digits.py model.gguf images.npy

Images are float32[n, height, width]. The file's ``general.architecture`` says what it holds.
"""

import sys

import numpy as np

import pyggml as ggml


def fully_connected(ctx, w, images):
    """Two dense layers."""
    x = ggml.reshape_2d(ctx, images, images.ne[0] * images.ne[1], images.ne[3])  # [pixels, n]
    x = ggml.add(ctx, ggml.mul_mat(ctx, w["fc1.weight"], x), w["fc1.bias"])
    x = ggml.relu(ctx, x)  # [hidden, n]
    return ggml.add(ctx, ggml.mul_mat(ctx, w["fc2.weight"], x), w["fc2.bias"])  # [10, n]


def convolutional(ctx, w, images):
    """Two convolutions, each followed by pooling, and a dense layer."""
    x = images  # [w, h, 1, n]
    for name in ("conv1", "conv2"):
        x = ggml.conv_2d(ctx, w[f"{name}.kernel"], x, p0=1, p1=1)  # [w, h, channels, n]
        x = ggml.relu(ctx, ggml.add(ctx, x, w[f"{name}.bias"]))
        x = ggml.pool_2d(ctx, x, "max", 2, 2)  # [w / 2, h / 2, channels, n]
    x = ggml.reshape_2d(ctx, x, x.ne[0] * x.ne[1] * x.ne[2], x.ne[3])
    return ggml.add(ctx, ggml.mul_mat(ctx, w["dense.weight"], x), w["dense.bias"])  # [10, n]


MODELS = {"digits-fc": fully_connected, "digits-cnn": convolutional}


def load(path, backend):
    """The model's function, and its weights by name in the backend's memory."""
    ctx = ggml.Context(no_alloc=True)
    with ggml.GGUFFile(path) as f:
        model = MODELS[f.get_str("general.architecture")]
        weights = {name: ctx.new_tensor(t.type, t.ne) for name, t in f.tensors.items()}
        buffer = ggml.alloc_ctx_tensors(ctx, backend.buffer_type())
        for name, tensor in weights.items():
            buffer.set_tensor(tensor, f.tensor_bytes(name))
    return model, weights


def classify(path, images):
    """The digit on each image, int32[n]."""
    backend = ggml.init_backend("cpu")
    model, weights = load(path, backend)

    ctx = ggml.Context(no_alloc=True)
    n, height, width = images.shape
    x = ctx.new_tensor_4d(ggml.GGMLType.F32, width, height, 1, n)
    best = ggml.argmax(ctx, model(ctx, weights, x))  # [n]
    graph = ggml.CGraph()
    graph.build_forward_expand(best)

    ggml.GraphAllocator(backend.buffer_type()).alloc_graph(graph)
    x.set(images)
    backend.graph_compute(graph)
    digits = best.numpy().reshape(n).copy()
    backend.close()
    return digits


if __name__ == "__main__":
    print(classify(sys.argv[1], np.load(sys.argv[2])))
