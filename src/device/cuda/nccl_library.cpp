#include "device/cuda/nccl_library.hpp"

#include <cstring>
#include <dlfcn.h>
#include <guozhuang/error.hpp>
#include <memory>

#include "base/mutex.hpp"
#include "device/cuda/nccl_communicator.hpp"
#include "device/cuda/nccl_functions.hpp"

namespace guozhuang::device {
namespace {

constexpr auto usual_library = "libnccl.so.2";

class CudaNccl final : public Nccl {
public:
    CudaNccl(const NcclFunctions& functions, DeviceByIndex devices)
        : functions_(functions), devices_(std::move(devices)) {}

    std::string version() const override {
        int code = 0;
        check_nccl(functions_, functions_.get_version(&code), "cannot tell its version", nullptr);
        Dl_info info{};
        const bool is_found =
            dladdr(reinterpret_cast<const void*>(functions_.get_version), &info) != 0;
        return nccl_version_text(code) + " (" + (is_found ? info.dli_fname : "") + ")";
    }

    const NcclFunctions& functions() const noexcept { return functions_; }

    NcclId make_id() override {
        ncclUniqueId native;
        check_nccl(functions_, functions_.make_id(&native), "cannot make an id", nullptr);
        NcclId id{};
        std::memcpy(id.data(), &native, id.size());
        return id;
    }

    std::unique_ptr<NcclCommunicator> connect(const NcclId& id, int rank, int ranks,
                                              int device) override {
        return std::make_unique<CudaNcclCommunicator>(functions_, id, rank, ranks,
                                                      devices_(device));
    }

private:
    const NcclFunctions functions_;
    const DeviceByIndex devices_;
};

void* open_library(const std::string& wanted) {
    constexpr auto how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    if (void* loaded = dlopen(usual_library, how | RTLD_NOLOAD)) return loaded;
    const bool is_file = wanted != "auto";
    if (void* library = dlopen(is_file ? wanted.c_str() : usual_library, how)) return library;
    throw Error(ErrorCode::unavailable,
                std::string(is_file ? "NCCL not loaded: " : "NCCL not found: ") + dlerror());
}

}  // namespace

OrReason<Nccl*> nccl_of(const std::string& wanted, const DeviceByIndex& devices, bool is_limited) {
    static auto& mutex = *new base::Mutex;
    static CudaNccl* loaded = nullptr;
    if (wanted == "off") return {.reason = "GUOZHUANG_NCCL is off"};
    try {
        const base::Lock lock(mutex);
        if (!loaded) loaded = new CudaNccl(nccl_functions_of(open_library(wanted)), devices);
        if (is_limited) require_cta_limit(loaded->functions());
        return {.value = loaded};
    } catch (const Error& error) {
        return {.reason = error.what()};
    }
}

}  // namespace guozhuang::device
