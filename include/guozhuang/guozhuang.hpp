#pragma once

#if __cplusplus < 202002L
#error "guozhuang needs C++20 (-std=c++20); programs in C++14 or C++17 include <guozhuang.h>, for C"
#endif

/// Includes all public headers. The documentation writes `namespace gz = guozhuang;`.
#include <guozhuang/arena.hpp>
#include <guozhuang/async_averager.hpp>
#include <guozhuang/convert.hpp>
#include <guozhuang/elements.hpp>
#include <guozhuang/ema.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/gossip.hpp>
#include <guozhuang/grad_scaler.hpp>
#include <guozhuang/grid.hpp>
#include <guozhuang/handle.hpp>
#include <guozhuang/info.hpp>
#include <guozhuang/length_sampler.hpp>
#include <guozhuang/local_sgd.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/master_weights.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/parameter_server.hpp>
#include <guozhuang/plan.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/sampler.hpp>
#include <guozhuang/schedule.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/shape.hpp>
#include <guozhuang/sharded_optimizer.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <guozhuang/timeline.hpp>
#include <guozhuang/training.hpp>
#include <guozhuang/types.hpp>
#include <guozhuang/version.hpp>
