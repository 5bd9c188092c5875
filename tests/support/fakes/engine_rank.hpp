#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <guozhuang/handle.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "support/fakes/fake_driver.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/group/mail_channel.hpp"
#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::test {

/// A backend that the test controls.
class ScriptedBackend final : public engine::Backend {
public:
    explicit ScriptedBackend(std::function<void(const engine::Bundle&)> script)
        : script_(std::move(script)) {}
    void run(const engine::Bundle& bundle) override { script_(bundle); }

private:
    std::function<void(const engine::Bundle&)> script_;
};

/// The same on a stream of the host fake.
class ScriptedStreamBackend final : public engine::StreamBackend {
public:
    ScriptedStreamBackend(std::function<void(const engine::Bundle&)> script,
                          std::function<void()> on_release)
        : script_(std::move(script)), on_release_(std::move(on_release)) {}
    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override {
        launch(stream,
               [bundle, script = script_] { bundle->attempt([&] { script(bundle->bundle()); }); });
    }
    void release() noexcept override {
        if (on_release_) on_release_();
    }
    bool was_released() const noexcept override { return false; }
    void stop() noexcept override {}

private:
    std::function<void(const engine::Bundle&)> script_;
    std::function<void()> on_release_;
};

struct EngineOptions {
    bool own_thread = true;                             ///< false: driven by waiting callers alone
    std::int64_t elements = 1;                          ///< of the tensor of every operation
    std::shared_ptr<engine::JobControl> job = nullptr;  ///< null: the transport's
    engine::Mail* mail = nullptr;                       ///< null: the transport's
};

/// A world engine of an in-process job, with the test's backend.
class EngineRank {
public:
    EngineRank(std::shared_ptr<wire::Transport> transport,
               std::function<void(const engine::Bundle&)> run, const EngineOptions& options = {})
        : transport_(std::move(transport)),
          control_(*transport_, {}, everybody()),
          mail_(*transport_, 0, everybody()),
          script_(run),
          backend_(std::move(run)),
          numbers_(static_cast<std::size_t>(options.elements)) {
        engine_ = std::make_shared<engine::Engine>(engine::Engine::Dependencies{
            .context = {.job = options.job ? options.job : transport_,
                        .timeline = std::make_shared<trace::Timeline>(),
                        .group_ranks = {},
                        .rank = control_.rank(),
                        .size = control_.size(),
                        .doorbell = transport_->doorbell(),
                        .activity = transport_->activity(),
                        .wait = transport_->wait_settings()},
            .control = control_,
            .mail = options.mail ? *options.mail : mail_,
            .negotiator = {}});
        engine_->add_executor(DeviceKind::host, &backend_);
        if (options.own_thread) engine_->start();
    }
    ~EngineRank() { engine_->stop(); }
    EngineRank(const EngineRank&) = delete;
    EngineRank& operator=(const EngineRank&) = delete;

    engine::Engine& engine() { return *engine_; }
    base::Doorbell& doorbell() { return transport_->doorbell(); }
    void run_on_stream_of(const std::shared_ptr<device::Driver>& driver) {
        run_on_stream_of(driver, std::make_shared<engine::Completions>(driver));
    }
    void run_on_stream_of(const std::shared_ptr<device::Driver>& driver,
                          std::shared_ptr<engine::Completions> completions,
                          std::function<void()> on_release = {}) {
        driver_ = driver;
        engine_->add_executor(
            DeviceKind::host,
            std::make_shared<engine::StreamExecutor>(
                0, std::make_shared<ScriptedStreamBackend>(script_, std::move(on_release)),
                std::move(completions)));
    }

    /// An allreduce.
    Handle submit(const std::string& name, std::shared_ptr<void> keep_alive = {},
                  base::Deadline deadline = base::no_deadline) {
        engine::Request request{
            .name = name,
            .submitted = base::Clock::now(),
            .deadline = deadline,
            .description =
                protocol::share(protocol::Description{.tensors = {{name, DType::f32, shape()}}}),
            .tensors = {tensor()},
            .keep_alive = std::move(keep_alive),
            .device = driver_};
        return Handle(engine_->submit(std::move(request), false));
    }

    /// A send or receive.
    Handle submit(const protocol::Route& route, std::shared_ptr<void> keep_alive = {}) {
        engine::Request request{.kind = engine::Request::Kind::point_to_point,
                                .name = "message",
                                .route = route,
                                .tensors = {tensor()},
                                .keep_alive = std::move(keep_alive),
                                .device = driver_};
        return Handle(engine_->submit(std::move(request), false));
    }

private:
    std::vector<int> everybody() const {
        std::vector<int> group_ranks(static_cast<std::size_t>(transport_->size()));
        std::iota(group_ranks.begin(), group_ranks.end(), 0);
        return group_ranks;
    }

    std::vector<std::int64_t> shape() const { return {std::ssize(numbers_)}; }
    TensorView tensor() { return TensorView(numbers_.data(), DType::f32, shape()); }

    std::shared_ptr<wire::Transport> transport_;
    wire::ControlChannel control_;
    wire::MailChannel mail_;
    const std::function<void(const engine::Bundle&)> script_;
    ScriptedBackend backend_;
    std::vector<float> numbers_;
    std::shared_ptr<device::Driver> driver_;  ///< null: tensors are the host's
    std::shared_ptr<engine::Engine> engine_;
};

}  // namespace guozhuang::test
