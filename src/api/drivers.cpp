#include "api/drivers.hpp"

#include "api/process_set_state.hpp"

namespace guozhuang::api {

std::shared_ptr<device::Driver> driver_of(DeviceKind kind, Session* session) {
    return set_runtime_of(session, {})->driver_of(kind);
}

}  // namespace guozhuang::api
