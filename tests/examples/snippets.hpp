#pragma once

// Declarations that the snippets of the documentation assume: a model, an optimizer and data, as a
// user's trainer has them.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

namespace gz = guozhuang;

struct Batch {};

/// The trainer's own type, which knows nothing of this library.
struct Tensor {
    std::string name;
    std::span<float> value, gradient;
};

struct Model {
    explicit Model(int = 0) {}
    std::vector<Tensor> parameters();
    double backward(const Batch& batch, const std::function<void(std::size_t)>& on_gradient = {});
    double backward(const Batch& batch, double loss_scale,
                    const std::function<void(std::size_t)>& on_gradient);
    double loss() const;
};

/// The state of an optimizer.
struct Kept {
    std::int64_t step_ = 0;
    std::vector<std::vector<float>> velocities_;
};

struct Sgd : Kept {
    Sgd(Model& model, double rate);
    void step();
    template <class V>
    void visit_state(V&& visit) {
        visit("step", step_);
    }
};

struct Adam {
    Adam(const std::vector<gz::Parameter>& parameters, double rate);
    void step();
};

struct Data {
    std::size_t size() const;
    void operator()(gz::Session& session) const;
};

extern const Data train;
extern int step, last;
extern std::size_t count;
extern std::int64_t epoch;
extern float *pointer, *memory;  // as CUDA gives them
extern void* cuda_stream;
extern int device;
extern gz::StreamRef stream;
extern Model model;
extern Batch batch;
extern Sgd sgd;
extern gz::Session session;
extern std::vector<gz::Parameter> parameters;
extern gz::DistributedOptimizer<Sgd> optimizer;
extern gz::DistributedSampler sampler;
extern gz::GradScaler scaler;
extern gz::MasterWeights<Adam> master;
extern std::vector<std::size_t> lengths;
extern std::vector<Batch> my_batches;
std::vector<Batch> batches(const Data& data, const gz::DistributedSampler& sampler);
void save(const char* path, const Model& model, const Sgd& sgd, std::int64_t epoch);
void save_checkpoint();
bool exists(const char* path);
std::int64_t load(const char* path, Model& model, Sgd& sgd);
