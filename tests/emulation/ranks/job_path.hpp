#pragma once

#include <guozhuang/session.hpp>

namespace guozhuang::test {

/// Chooses by what path the job's CUDA tensors go.
void prepare_path(Session& session);

}  // namespace guozhuang::test
