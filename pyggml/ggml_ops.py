"""The names of ggml's op enum, and why some of them are not ops here.

    GGML_OPS                                       # ("NONE", "DUP", "ADD", ...)
    REASONS["SSM_SCAN"]

Source: ggml, ``enum ggml_op``, in its order.
"""

from __future__ import annotations

_NAMES = """
    NONE DUP ADD ADD_ID ADD1 ACC SUB MUL DIV SQR SQRT LOG SIN COS SUM SUM_ROWS CUMSUM MEAN ARGMAX
    COUNT_EQUAL REPEAT REPEAT_BACK CONCAT SILU_BACK NORM RMS_NORM RMS_NORM_BACK GROUP_NORM L2_NORM
    MUL_MAT MUL_MAT_ID OUT_PROD SCALE SET CPY CONT RESHAPE VIEW PERMUTE TRANSPOSE GET_ROWS
    GET_ROWS_BACK SET_ROWS DIAG DIAG_MASK_INF DIAG_MASK_ZERO SOFT_MAX SOFT_MAX_BACK ROPE ROPE_BACK
    CLAMP CONV_TRANSPOSE_1D IM2COL IM2COL_BACK IM2COL_3D COL2IM_1D CONV_2D CONV_3D CONV_2D_DW
    CONV_TRANSPOSE_2D POOL_1D POOL_2D POOL_2D_BACK UPSCALE PAD PAD_REFLECT_1D ROLL ARANGE
    TIMESTEP_EMBEDDING ARGSORT TOP_K LEAKY_RELU TRI FILL FLASH_ATTN_EXT FLASH_ATTN_BACK SSM_CONV
    SSM_SCAN WIN_PART WIN_UNPART GET_REL_POS ADD_REL_POS UNARY MAP_CUSTOM1 MAP_CUSTOM2 MAP_CUSTOM3
    CUSTOM CROSS_ENTROPY_LOSS CROSS_ENTROPY_LOSS_BACK OPT_STEP_ADAMW OPT_STEP_SGD GLU RWKV_WKV6
    GATED_LINEAR_ATTN RWKV_WKV7 SOLVE_TRI GATED_DELTA_NET LIGHTNING_INDEXER DSV4_HC_COMB DSV4_HC_PRE
    DSV4_HC_POST
"""
GGML_OPS = tuple(_NAMES.split())

_WHY = {
    "not an op: a tensor without one is a leaf": "NONE",
    "`MAP_CUSTOM` is all of them: it takes up to ten sources": (
        "MAP_CUSTOM1 MAP_CUSTOM2 MAP_CUSTOM3 CUSTOM"
    ),
    "for training: there is no backward pass yet": """
        REPEAT_BACK SILU_BACK RMS_NORM_BACK GET_ROWS_BACK SOFT_MAX_BACK ROPE_BACK IM2COL_BACK
        POOL_2D_BACK CROSS_ENTROPY_LOSS CROSS_ENTROPY_LOSS_BACK OPT_STEP_ADAMW OPT_STEP_SGD
    """,
    "unfinished in ggml too": "FLASH_ATTN_BACK",
    "state-space, RWKV and linear-attention models are not supported": (
        "SSM_CONV SSM_SCAN RWKV_WKV6 RWKV_WKV7 GATED_LINEAR_ATTN SOLVE_TRI GATED_DELTA_NET"
    ),
    "of one model family, which is not supported": (
        "LIGHTNING_INDEXER DSV4_HC_COMB DSV4_HC_PRE DSV4_HC_POST"
    ),
    "video and audio models are not supported": "IM2COL_3D CONV_3D COL2IM_1D",
    "of one vision tower, which is not supported": "GET_REL_POS ADD_REL_POS",
}
REASONS = {name: why for why, names in _WHY.items() for name in names.split()}
LATER = "not written yet"
