#pragma once

/// Data-parallel training with libtorch (docs/libtorch.md), 1.13 or newer. Header-only: a program
/// links guozhuang::torch and its own libtorch. Inside namespace guozhuang, `torch` is this
/// namespace, and libtorch is `::torch`.
#include <guozhuang/torch/optimizer.hpp>
#include <guozhuang/torch/parallel.hpp>
#include <guozhuang/torch/sampler.hpp>
#include <guozhuang/torch/state.hpp>
#include <guozhuang/torch/tensors.hpp>
