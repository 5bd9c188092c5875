#include "group.hpp"

#include <ATen/ops/from_blob.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace guozhuang::perf {
namespace {

constexpr const char* host = "127.0.0.1";

c10::intrusive_ptr<c10d::TCPStore> open_store(bool serve, std::uint16_t port) {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    options.waitWorkers = false;
    options.timeout = std::chrono::minutes(1);
    return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace

struct GlooGroup::State {
    int rank;
    int size;
    c10::intrusive_ptr<c10d::TCPStore> store = {};
    c10::intrusive_ptr<c10d::ProcessGroupGloo> group = {};
};

GlooGroup::GlooGroup(int rank, int size) : state_(new State{rank, size}) {}

GlooGroup::~GlooGroup() = default;

std::uint16_t GlooGroup::serve() {
    state_->store = open_store(true, 0);
    return state_->store->getPort();
}

void GlooGroup::join(std::uint16_t port) {
    if (!state_->store) state_->store = open_store(false, port);
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    state_->group = c10::make_intrusive<c10d::ProcessGroupGloo>(state_->store, state_->rank,
                                                                state_->size, options);
}

void GlooGroup::sum(const std::vector<Floats>& buffers) {
    std::vector<c10::intrusive_ptr<c10d::Work>> under_way;
    for (const auto& floats : buffers) {
        std::vector<at::Tensor> tensors{
            at::from_blob(floats.data, {static_cast<std::int64_t>(floats.count)}, at::kFloat)};
        under_way.push_back(state_->group->allreduce(tensors));
    }
    for (const auto& work : under_way) work->wait();
}

}  // namespace guozhuang::perf
