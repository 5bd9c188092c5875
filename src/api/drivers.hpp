#pragma once

#include <guozhuang/export.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>

#include "device/device.hpp"

namespace guozhuang::api {

/// The session's driver for devices of this kind. Not for users: gz-perf fills and reads its
/// tensors with it, and makes their streams. Throws Error(unavailable) with the reason for a kind
/// that cannot be used here, and Error(not_initialised). `session` null means Session::current().
GUOZHUANG_API std::shared_ptr<device::Driver> driver_of(DeviceKind kind,
                                                        Session* session = nullptr);

}  // namespace guozhuang::api
