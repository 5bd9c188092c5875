// Trains a small network on Fashion-MNIST, and goes on without the ranks that die:
//
//     gzrun -np 4 --min-np 1 fashion_mnist_elastic --kill-every 200
#include "dataset.hpp"
#include "model.hpp"
#include "options.hpp"
#include "sgd.hpp"

#include <algorithm>
#include <chrono>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <guozhuang/guozhuang.hpp>
#include <string>
#include <vector>

using namespace fashion;
namespace gz = guozhuang;

namespace {

struct Elasticity {
    std::size_t commit_every = 10;  ///< steps
    std::size_t kill_every = 0;     ///< steps; 0: nobody is killed
};

/// How far the training is, the same on all ranks.
struct Progress {
    std::int64_t epoch = 0;
    std::int64_t samples = 0;  ///< of the epoch, that all ranks together have used
    std::int64_t steps = 0;    ///< of all epochs
};

/// The state of the training after some step, in memory.
class Commit {
public:
    Commit(Model& model, Sgd& sgd) : parameters_(model.parameters()), sgd_(sgd), saved_sgd_(sgd) {
        save({});
    }

    void save(const Progress& progress) {
        progress_ = progress;
        saved_sgd_ = sgd_;
        values_.clear();
        for (const auto& parameter : parameters_)
            values_.emplace_back(parameter.value.begin(), parameter.value.end());
    }

    /// Gives all ranks the newest commit of any rank: some may have ended a step that others have
    /// not. Returns its progress.
    Progress restore() {
        auto newest = progress_.steps;
        gz::allreduce(newest, {.op = gz::ReduceOp::max});
        int root = progress_.steps == newest ? gz::rank() : gz::size();
        gz::allreduce(root, {.op = gz::ReduceOp::min});
        for (std::size_t i = 0; i < values_.size(); ++i)
            std::ranges::copy(values_[i], parameters_[i].value.begin());
        sgd_ = saved_sgd_;
        gz::broadcast_parameters(gz::parameters_of(parameters_), root);
        gz::broadcast_optimizer_state(sgd_, root);
        auto progress = progress_;  // the commit stays whole if a rank dies meanwhile
        for (auto* number : {&progress.epoch, &progress.samples, &progress.steps})
            gz::broadcast(*number, root);
        save(progress);
        return progress;
    }

private:
    std::vector<Tensor> parameters_;
    Sgd& sgd_;
    Sgd saved_sgd_;
    std::vector<std::vector<float>> values_;
    Progress progress_;
};

class Trainer {
public:
    Trainer(const Options& options, const Elasticity& elasticity)
        : options_(options), elasticity_(elasticity) {}

    /// Trains from the newest commit to the end; `death` of a rank is why not from the start.
    /// Throws RankDied.
    void train(std::string death) {
        auto progress = commit_.restore();
        // The same batch, split over the ranks that are left.
        const auto ranks = static_cast<std::size_t>(gz::size());
        const auto share = std::max<std::size_t>(options_.batch / ranks, 1);
        const auto steps_of = [&](std::size_t samples) {
            return (samples + share * ranks - 1) / (share * ranks);
        };
        const auto epochs_left = options_.epochs - static_cast<std::size_t>(progress.epoch);
        const auto done = static_cast<std::size_t>(progress.samples);
        if (epochs_left > 0)
            sgd_.replan(steps_of(samples_ - done) + (epochs_left - 1) * steps_of(samples_));
        gz::DistributedSampler sampler(data_.size(),
                                       {.seed = options_.seed, .tail = gz::Tail::uneven});
        gz::DistributedOptimizer optimizer(sgd_, gz::parameters_of(model_.parameters()));
        while (std::cmp_less(progress.epoch, options_.epochs)) {
            sampler.set_epoch(static_cast<std::uint64_t>(progress.epoch),
                              static_cast<std::size_t>(progress.samples));
            Batches batches(data_, sampler.indices(), share);
            auto batch = batches.begin();
            while (std::cmp_less(progress.samples, samples_)) {
                kill_one(progress.steps);
                if (batch != batches.end()) {
                    model_.backward(*batch, optimizer.on_gradient());
                    ++batch;
                } else {  // fewer samples than ranks were left
                    clear_gradients();
                }
                optimizer.step();
                if (!death.empty() && gz::rank() == 0)
                    std::printf("%s: %d ranks go on\n", death.c_str(), gz::size());
                death.clear();
                ++progress.steps;
                progress.samples =
                    std::min(progress.samples + static_cast<std::int64_t>(share * ranks),
                             static_cast<std::int64_t>(samples_));
                if (progress.steps % static_cast<std::int64_t>(elasticity_.commit_every) == 0)
                    commit_.save(progress);
            }
            accuracy_ = evaluate();
            progress = {progress.epoch + 1, 0, progress.steps};
            commit_.save(progress);
            if (gz::rank() == 0)
                std::printf("epoch %d/%zu  test accuracy %.4f  (%d ranks)\n",
                            static_cast<int>(progress.epoch), options_.epochs, accuracy_,
                            gz::size());
        }
        if (gz::rank() == 0) std::printf("accuracy=%.4f ranks=%d\n", accuracy_, gz::size());
    }

private:
    void kill_one(std::int64_t step) const {
        const auto kills = first_size_ - gz::size();  // so far
        const auto due = static_cast<std::int64_t>(elasticity_.kill_every) * (kills + 1);
        if (due > 0 && step == due && gz::size() > 1 && gz::rank() == gz::size() - 1)
            std::raise(SIGKILL);
    }

    void clear_gradients() {
        for (const auto& parameter : model_.parameters())
            std::ranges::fill(parameter.gradient, 0.0F);
    }

    double evaluate() {
        const gz::DistributedSampler samples(test_.size(),
                                             {.shuffle = false, .tail = gz::Tail::uneven});
        std::int64_t correct = 0;
        for (const Batch& batch : Batches(test_, samples.indices(), options_.batch))
            correct += static_cast<std::int64_t>(model_.count_correct(batch));
        gz::allreduce(correct);
        return static_cast<double>(correct) / static_cast<double>(test_.size());
    }

    const Options options_;
    const Elasticity elasticity_;
    const int first_size_ = gz::size();
    const Dataset data_ = load_dataset(options_.data, "train");
    const Dataset test_ = load_dataset(options_.data, "t10k");
    const std::size_t samples_ =  ///< of an epoch
        options_.steps == 0 ? data_.size() : std::min(data_.size(), options_.steps* options_.batch);
    Model model_{options_.seed};
    Sgd sgd_{model_.parameters(), options_.rate, 1};
    Commit commit_{model_, sgd_};
    double accuracy_ = 0;
};

void run(gz::Session& session, const Options& options, const Elasticity& elasticity) {
    Trainer trainer(options, elasticity);
    std::string death;
    while (true) {
        try {
            return trainer.train(death);
        } catch (const gz::RankDied& error) {
            session.shrink();
            death = error.what();
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Elasticity elasticity;
        const Options options = parse_options(argc, argv, [&](CLI::App& app) {
            app.remove_option(app.get_option("--log-losses"));
            app.add_option("--commit-every", elasticity.commit_every, "Steps between commits")
                ->check(CLI::PositiveNumber);
            app.add_option("--kill-every", elasticity.kill_every,
                           "Kill the last rank after so many steps, as long as two are left; 0: "
                           "none");
        });
        gz::Session session(&argc, &argv, {.time_to_shrink = std::chrono::seconds(30)});
        run(session, options, elasticity);
    } catch (const Usage& usage) {
        std::fprintf(usage.code == 0 ? stdout : stderr, "%s\n", usage.what());
        return usage.code;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
