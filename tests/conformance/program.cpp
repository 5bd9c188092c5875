// The conformance suite through the C++ interface: program CASES OUTCOMES.
#include "program.hpp"

#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

using namespace conformance;

namespace {

/// Waits for an operation, and gives the words of its result.
using Finish = std::function<std::string()>;

std::string nothing() {
    return "";
}

std::map<std::string, gz::ProcessSet> sets;

gz::ProcessSet set_of(const Case& c) {
    return c.has("set") ? sets.at(c.at("set")) : gz::ProcessSet();
}

gz::Options options_of(const Case& c) {
    return {.name = c.get("name", ""), .process_set = set_of(c)};
}

gz::AllreduceOptions reduction_of(const Case& c) {
    return {.name = c.get("name", ""),
            .op = named(gz::all_reduce_ops, c.at("op")),
            .prescale = std::stod(c.get("prescale", "1")),
            .postscale = std::stod(c.get("postscale", "1")),
            .process_set = set_of(c)};
}

/// Finishes an operation that works in place.
Finish in_place(Case& c, gz::Handle handle) {
    return [&c, handle = std::move(handle)] {
        if (handle) handle.wait();
        return written(c.tensors);
    };
}

/// Adds to the result of an operation that only reads whether its input has changed.
std::string with_input(Case& c, const std::string& result) {
    return result + (written(c.tensors) == c.given ? "" : " and the input has changed");
}

template <class R>
Finish done(Case& c, R result) {
    return [&c, text = written(std::move(result))] { return with_input(c, text); };
}

template <class H>
Finish taken(Case& c, H handle) {
    return [&c, handle = std::move(handle)] { return with_input(c, written(handle.take())); };
}

// --- operations ----------------------------------------------------------------------------------

Finish allreduce(Case& c) {
    const auto tensor = c.tensors.at(0).view();
    if (c.begins()) return in_place(c, gz::allreduce_async(tensor, reduction_of(c)));
    gz::allreduce(tensor, reduction_of(c));
    return in_place(c, {});
}

Finish grouped_allreduce(Case& c) {
    if (c.begins()) return in_place(c, gz::grouped_allreduce_async(c.views(), reduction_of(c)));
    gz::grouped_allreduce(c.views(), reduction_of(c));
    return in_place(c, {});
}

Finish broadcast(Case& c) {
    const auto tensor = c.tensors.at(0).view();
    const auto root = std::stoi(c.at("root"));
    if (c.begins()) return in_place(c, gz::broadcast_async(tensor, root, options_of(c)));
    gz::broadcast(tensor, root, options_of(c));
    return in_place(c, {});
}

Finish all_gather(Case& c) {
    const auto tensor = c.tensors.at(0).view();
    if (c.begins()) return taken(c, gz::all_gather_async(tensor, options_of(c)));
    return done(c, gz::all_gather(tensor, options_of(c)));
}

Finish grouped_all_gather(Case& c) {
    if (c.begins()) return taken(c, gz::grouped_all_gather_async(c.views(), options_of(c)));
    return done(c, gz::grouped_all_gather(c.views(), options_of(c)));
}

Finish all_to_all(Case& c) {
    const auto tensor = c.tensors.at(0).view();
    const auto splits = numbers<std::int64_t>(c.get("splits", ""), ',');
    if (c.begins()) return taken(c, gz::all_to_all_async(tensor, splits, options_of(c)));
    return done(c, gz::all_to_all(tensor, splits, options_of(c)));
}

Finish reduce_scatter(Case& c) {
    const auto tensor = c.tensors.at(0).view();
    if (c.begins()) return taken(c, gz::reduce_scatter_async(tensor, reduction_of(c)));
    return done(c, gz::reduce_scatter(tensor, reduction_of(c)));
}

Finish grouped_reduce_scatter(Case& c) {
    if (c.begins()) return taken(c, gz::grouped_reduce_scatter_async(c.views(), reduction_of(c)));
    return done(c, gz::grouped_reduce_scatter(c.views(), reduction_of(c)));
}

/// To one rank, and from another.
Finish exchange(Case& c) {
    auto& tensor = c.tensors.at(0);
    const auto tag = static_cast<std::uint16_t>(std::stoi(c.at("tag")));
    const auto to = std::stoi(c.at("to")), from = std::stoi(c.at("from"));
    Tensor received = tensor;
    std::ranges::fill(received.bytes, std::byte{});
    const auto sent = gz::send_async(tensor.view(), to, {.tag = tag, .process_set = set_of(c)});
    gz::recv(received.view(), from, {.tag = tag, .process_set = set_of(c)});
    sent.wait();
    tensor = received;
    return in_place(c, {});
}

Finish broadcast_bytes(Case& c) {
    auto bytes = c.tensors.at(0).text();
    gz::broadcast_bytes(bytes, std::stoi(c.at("root")), set_of(c));
    return [text = written_bytes(bytes)] { return text; };
}

Finish all_gather_bytes(Case& c) {
    std::string words;
    for (auto& bytes : gz::all_gather_bytes(c.tensors.at(0).text(), set_of(c)))
        words += written_bytes(bytes);
    return [words] { return words; };
}

Finish barrier(Case& c) {
    if (c.begins()) return in_place(c, gz::barrier_async(options_of(c)));
    gz::barrier(options_of(c));
    return nothing;
}

Finish join(Case& c) {
    const auto text = [](int last) { return " " + std::to_string(last); };
    if (!c.begins()) return [text = text(gz::join({.process_set = set_of(c)}))] { return text; };
    return [text, handle = gz::join_async({.process_set = set_of(c)})] {
        return text(handle.last_rank());
    };
}

// --- training ------------------------------------------------------------------------------------

/// A linear model in f64: the last column of its samples is what the product of the others and the
/// weights should be.
class Model {
public:
    explicit Model(Case& c)
        : samples_(c.tensors.back()), weights_(c.tensors), rate_(std::stod(c.at("rate"))) {
        weights_.pop_back();
        gradients_ = weights_;
        for (std::size_t i = 0; i < weights_.size(); ++i) {
            std::ranges::fill(gradients_[i].bytes, std::byte{});
            parameters_.push_back(
                {"weight" + std::to_string(i), weights_[i].view(), gradients_[i].view()});
        }
    }
    std::vector<gz::Parameter>& parameters() { return parameters_; }
    std::string text() { return written(weights_); }

    /// Adds the gradient of half the squared error of so many of the next samples.
    void backward(std::size_t count) {
        const auto columns = static_cast<std::size_t>(samples_.shape[1]);
        const auto* sample = reinterpret_cast<const double*>(samples_.bytes.data());
        for (sample += columns * next_; count > 0; --count, ++next_, sample += columns) {
            double error = -sample[columns - 1];
            visit([&](double w, double&, std::size_t i) { error += w * sample[i]; });
            visit([&](double, double& gradient, std::size_t i) { gradient += error * sample[i]; });
        }
    }
    void step() {
        visit([this](double& w, double& gradient, std::size_t) {
            w -= rate_ * std::exchange(gradient, 0);
        });
    }

private:
    template <class F>
    void visit(F&& each) {
        std::size_t number = 0;
        for (std::size_t t = 0; t < weights_.size(); ++t)
            for (std::size_t i = 0; i < weights_[t].view().count(); ++i)
                each(reinterpret_cast<double*>(weights_[t].bytes.data())[i],
                     reinterpret_cast<double*>(gradients_[t].bytes.data())[i], number++);
    }

    Tensor samples_;
    std::vector<Tensor> weights_, gradients_;
    std::vector<gz::Parameter> parameters_;
    double rate_;
    std::size_t next_ = 0;
};

Finish train(Case& c) {
    Model model(c);
    const auto steps = std::stoul(c.at("steps")), passes = std::stoul(c.get("passes", "1"));
    if (!c.has("unequal"))
        gz::broadcast_parameters(model.parameters(), set_of(c).ranks().front(), set_of(c));
    gz::DistributedOptimizer optimizer(model, model.parameters(),
                                       {.op = named(gz::all_reduce_ops, c.at("op")),
                                        .backward_passes_per_step = static_cast<int>(passes),
                                        .process_set = set_of(c)});
    const auto samples = static_cast<std::size_t>(c.tensors.back().shape[0]) / steps / passes;
    for (std::size_t pass = 0; pass < steps * passes; ++pass) {
        model.backward(samples);
        if (c.has("hooks"))
            for (std::size_t i = model.parameters().size(); i-- > 0;) optimizer.on_gradient()(i);
        if (c.has("discard")) {
            optimizer.discard(c.at("discard"));
            break;
        }
        optimizer.step();
    }
    return [text = model.text()] { return text; };
}

// --- the session ---------------------------------------------------------------------------------

Finish rank(Case& c) {
    const auto set = set_of(c);
    return [text = " " + std::to_string(set.rank()) + " " + std::to_string(set.size())] {
        return text;
    };
}

Finish create_set(Case& c) {
    sets[c.at("set")] = gz::ProcessSet::create(numbers<int>(c.at("ranks"), ','));
    return nothing;
}

// --- cases ---------------------------------------------------------------------------------------

const std::map<std::string, std::function<Finish(Case&)>> operations = {
    {"allreduce", allreduce},
    {"grouped_allreduce", grouped_allreduce},
    {"broadcast", broadcast},
    {"all_gather", all_gather},
    {"grouped_all_gather", grouped_all_gather},
    {"all_to_all", all_to_all},
    {"reduce_scatter", reduce_scatter},
    {"grouped_reduce_scatter", grouped_reduce_scatter},
    {"exchange", exchange},
    {"broadcast_bytes", broadcast_bytes},
    {"all_gather_bytes", all_gather_bytes},
    {"barrier", barrier},
    {"join", join},
    {"train", train},
    {"rank", rank},
    {"create_set", create_set},
    {"remove_set", [](Case& c) { return set_of(c).remove(), nothing; }},
    {"init", [](Case&) { return gz::init(), nothing; }},
    {"shutdown", [](Case&) { return gz::shutdown(), nothing; }},
};

/// A case that another one waits for.
struct Begun {
    std::unique_ptr<Case> given;
    Finish finish;
};
std::map<std::string, Begun> begun;

std::string outcome_of(std::unique_ptr<Case> c) {
    try {
        if (c->operation == "wait") return "ok" + begun.extract(c->at("name")).mapped().finish();
        const auto operation = operations.find(c->operation);
        if (operation == operations.end()) return "cannot";
        Finish finish = operation->second(*c);
        if (!c->begins()) return "ok" + finish();
        const auto name = c->at("name");
        begun[name] = {std::move(c), std::move(finish)};
        return "ok";
    } catch (const gz::Error& error) {
        return written(error);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    std::ifstream cases(argv[1]);
    std::ofstream outcomes(argv[2]);
    for (std::string line; std::getline(cases, line);) {
        std::istringstream words(line);
        int number = 0;
        words >> number;
        outcomes << number << ' ' << outcome_of(std::make_unique<Case>(words)) << std::endl;
    }
}
