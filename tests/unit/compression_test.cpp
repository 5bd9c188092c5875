// Gradients in fewer bytes: what each codec may lose, and that nothing is lost in the end.
#include <algorithm>
#include <cmath>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "collectives/codecs/integers.hpp"
#include "collectives/codecs/largest.hpp"
#include "collectives/codecs/low_rank.hpp"
#include "collectives/codecs/signs.hpp"
#include "support/cases/training_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using namespace guozhuang::codecs;

namespace {

constexpr Codec all_codecs[] = {Codec::int8, Codec::onebit, Codec::topk, Codec::powersgd};

std::vector<float> random_values(std::size_t count, unsigned salt) {
    std::mt19937 random(seed() + salt);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

float magnitude_of(const std::vector<float>& values) {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    return largest;
}

/// A model of three tensors, of which two are matrices; its values play no part.
struct Model {
    bool turned = false;  ///< the shape of the matrix
    std::vector<float> values = std::vector<float>(31 * 20), matrix = values;
    std::vector<float> few = std::vector<float>(7), bias = few;
    std::vector<float> some = std::vector<float>(600), thin = some;
    std::vector<Parameter> parameters() {
        return {{"matrix", {values, {31, 20}}, {matrix, {31, 20}}},
                {"bias", few, bias},
                {"thin", {some, {300, 2}}, {thin, {300, 2}}}};
    }
    std::vector<float> gradients() const {
        auto all = matrix;
        all.insert(all.end(), bias.begin(), bias.end());
        all.insert(all.end(), thin.begin(), thin.end());
        return all;
    }
    void set_gradients(const std::vector<float>& all) {
        std::copy_n(all.begin(), matrix.size(), matrix.begin());
        std::copy_n(all.begin() + 620, bias.size(), bias.begin());
        std::copy_n(all.begin() + 627, thin.size(), thin.begin());
    }
};
constexpr std::size_t model_size = 620 + 7 + 600;

struct Nothing {
    void step() {}
};

/// The gradients of each rank after each step, where rank r contributes `gradient(r, step)`.
using Steps = std::vector<std::vector<float>>;
std::vector<Steps> reduced(int ranks, const OptimizerOptions& options, std::size_t steps,
                           const std::function<std::vector<float>(int, std::size_t)>& gradient) {
    std::vector<Steps> all(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Session& session) {
        Model model;
        Nothing nothing;
        DistributedOptimizer optimizer(nothing, model.parameters(), options);
        for (std::size_t step = 0; step < steps; ++step) {
            model.set_gradients(gradient(session.rank(), step));
            optimizer.step();
            all[static_cast<std::size_t>(session.rank())].push_back(model.gradients());
        }
    });
    return all;
}

std::vector<float> average(int ranks, std::size_t step) {
    std::vector<float> sum(model_size);
    for (int rank = 0; rank < ranks; ++rank) {
        const auto values =
            random_values(model_size, static_cast<unsigned>(100 * rank) + unsigned(step));
        for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] += values[i] / static_cast<float>(ranks);
    }
    return sum;
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

/// How far the sum of the steps below may be from the true one. Signs come close slowly.
float tolerance_of(Codec codec) {
    return codec == Codec::onebit ? 0.4F : codec == Codec::powersgd ? 0.02F : 1e-3F;
}

OptimizerOptions with(Codec codec) {
    return {.compression = {.codec = codec, .density = 0.1, .rank = 2}};
}

}  // namespace

TEST_CASE("integers: within half a step, and the rest is kept") {
    for (const std::size_t count : {1u, 255u, 256u, 257u, 5000u}) {
        const auto values = random_values(count, 1);
        auto rest = values;
        std::vector<float> magnitudes(integers::blocks_of(count)), decoded(count);
        std::vector<std::int8_t> sent(count);
        integers::magnitudes(values, magnitudes);
        integers::encode(rest, magnitudes, 31, sent);
        integers::decode(sent, magnitudes, 31, 1, decoded);
        for (std::size_t i = 0; i < count; ++i) {
            const float step = magnitudes[i / integers::block] / 31;
            CHECK(std::abs(sent[i]) <= 31);
            CHECK(std::abs(decoded[i] - values[i]) <= step * 0.5001F);
            CHECK(std::abs(decoded[i] + rest[i] - values[i]) < 1e-5F);
        }
    }
}

TEST_CASE("integers: zeros stay zeros, and one element that is not finite makes its block NaN") {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
        std::vector<float> values(600, 1), magnitudes(3), decoded(600);
        std::fill_n(values.begin(), 256, 0.0F);
        values[300] = bad;
        std::vector<std::int8_t> sent(600);
        integers::magnitudes(values, magnitudes);
        integers::encode(values, magnitudes, 127, sent);
        integers::decode(sent, magnitudes, 127, 1, decoded);
        CHECK(decoded[0] == 0);
        CHECK(std::isnan(decoded[300]));
        CHECK(std::isnan(decoded[256]));
        CHECK(decoded[599] == 1);
        CHECK(values[300] == 0);  // the next step begins anew
    }
}

TEST_CASE("signs: every element becomes plus or minus the mean magnitude") {
    for (const std::size_t count : {1u, 7u, 8u, 9u, 1000u}) {
        const auto values = random_values(count, 2);
        auto rest = values;
        std::vector<std::uint8_t> message(signs::bytes_of(count));
        CHECK(message.size() == 4 + (count + 7) / 8);
        signs::encode(rest, message);
        std::vector<float> decoded(count);
        signs::decode(message, 1, decoded);
        double mean = 0;
        for (const float value : values)
            mean += std::abs(static_cast<double>(value)) / static_cast<double>(count);
        for (std::size_t i = 0; i < count; ++i) {
            CHECK(std::abs(std::abs(decoded[i]) - static_cast<float>(mean)) < 1e-5F);
            CHECK(std::signbit(decoded[i]) == std::signbit(values[i]));
            CHECK(std::abs(decoded[i] + rest[i] - values[i]) < 1e-5F);
        }
    }
}

TEST_CASE("largest: exactly the largest elements, and the others are kept") {
    std::vector<float> values{0.5F, -4, 1, 3, -3, 0, 2, std::nanf("")};
    std::vector<largest::Entry> sent(largest::number_of(values.size(), 0.4));
    REQUIRE(sent.size() == 4);
    largest::encode(values, sent);
    CHECK(sent[0].index == 1);
    CHECK(sent[0].value == -4);
    CHECK(sent[1].index == 3);
    CHECK(sent[2].index == 4);
    CHECK(std::isnan(sent[3].value));
    CHECK(values == std::vector<float>{0.5F, 0, 1, 0, 0, 0, 2, 0});
    CHECK(largest::number_of(1000, 1e-9) == 1);
    CHECK(largest::number_of(0, 0.5) == 0);
    CHECK(largest::number_of(10, 1) == 10);
}

TEST_CASE("low rank: a matrix of that rank is exact after one step") {
    const low_rank::Extents extents{6, 5, 2};
    const auto u = random_values(12, 3), v = random_values(10, 4);
    std::vector<float> matrix(30), left(12), right(10), again(30);
    low_rank::product(extents, u, v, 1, matrix);
    low_rank::start(right);
    low_rank::multiply(extents, matrix, right, left);
    low_rank::orthonormalise(extents, left);
    low_rank::multiply_transposed(extents, matrix, left, right);
    low_rank::product(extents, left, right, 1, again);
    CHECK(distance(matrix, again) < 1e-4 * magnitude_of(matrix));
}

TEST_CASE("low rank: columns become orthonormal, one that depends on others zero") {
    const low_rank::Extents extents{4, 1, 3};
    // Columns (1, 1, 0, 0), twice that, and (0, 0, 0, 5).
    std::vector<float> left{1, 2, 0, 1, 2, 0, 0, 0, 0, 0, 0, 5};
    low_rank::orthonormalise(extents, left);
    const auto root = std::sqrt(0.5F);
    CHECK(distance(left, {root, 0, 0, root, 0, 0, 0, 0, 0, 0, 0, 1}) < 1e-6);
}

TEST_CASE("every codec gives all ranks the same bits, and int8 nearly the average") {
    for (const int ranks : {1, 2, 3, 4})
        for (const auto codec : all_codecs) {
            CAPTURE(ranks, name_of(codec));
            const auto all = reduced(ranks, with(codec), 2, [](int rank, std::size_t step) {
                return random_values(model_size,
                                     static_cast<unsigned>(100 * rank) + unsigned(step));
            });
            for (const auto& steps : all) CHECK(steps == all[0]);
            const auto exact = average(ranks, 0);
            const float error = distance(all[0][0], exact), largest = 6;  // of the values drawn
            CHECK(error > 0);
            CHECK(error <= (codec == Codec::int8 ? largest * 0.51F / static_cast<float>(127 / ranks)
                                                 : 2 * largest));
        }
}

// The ranks have a gradient in the first step only; later steps send its error.
TEST_CASE("with error feedback the sum of all steps is the true sum") {
    const std::size_t steps[] = {6, 400, 12, 60};
    for (const int ranks : {1, 2, 3})
        for (std::size_t i = 0; i < std::size(all_codecs); ++i) {
            CAPTURE(ranks, name_of(all_codecs[i]));
            const auto only_first = [](int rank, std::size_t step) {
                return step == 0 ? random_values(model_size, static_cast<unsigned>(100 * rank))
                                 : std::vector<float>(model_size);
            };
            auto options = with(all_codecs[i]);
            const auto sum_of = [&] {
                std::vector<float> sum(model_size);
                const auto all = reduced(ranks, options, steps[i], only_first);
                for (const auto& step : all[0])
                    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += step[j];
                return sum;
            };
            CHECK(distance(sum_of(), average(ranks, 0)) < tolerance_of(all_codecs[i]));
            options.compression.error_feedback = false;
            CHECK(distance(sum_of(), average(ranks, 0)) > tolerance_of(all_codecs[i]));
        }
}

// A gradient of zeros says nothing of the next one, and infinity and NaN spoil no later step.
TEST_CASE("codecs go on after zeros, infinity and NaN") {
    for (const auto codec : all_codecs)
        for (const float bad : {0.0F, HUGE_VALF, std::nanf("")}) {
            CAPTURE(name_of(codec), bad);
            const std::size_t steps = codec == Codec::onebit ? 400 : 60;
            const auto all = reduced(2, with(codec), steps, [&](int rank, std::size_t step) {
                if (step == 0) return std::vector<float>(model_size, rank == 0 ? bad : 0.0F);
                return step == 1 ? random_values(model_size, static_cast<unsigned>(100 * rank))
                                 : std::vector<float>(model_size);
            });
            const bool is_zero = all[0][0] == std::vector<float>(model_size);
            CHECK(is_zero == (bad == 0));
            std::vector<float> sum(model_size);
            for (std::size_t step = 1; step < steps; ++step)
                for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += all[0][step][i];
            CHECK(distance(sum, average(2, 0)) < tolerance_of(codec));
        }
}

TEST_CASE("compression takes op sum, a scale and several passes") {
    for (const auto codec : all_codecs) {
        CAPTURE(name_of(codec));
        const auto gradient = [](int rank, std::size_t) {
            return random_values(model_size, static_cast<unsigned>(100 * rank));
        };
        const auto averages = reduced(3, with(codec), 1, gradient)[0][0];
        auto options = with(codec);
        options.op = ReduceOp::sum;
        options.gradient_scale = 0.5;
        auto sums = reduced(3, options, 1, gradient)[0][0];
        for (float& sum : sums) sum /= 1.5F;
        CHECK(distance(averages, sums) < 1e-5);
        options = with(codec);
        options.backward_passes_per_step = 2;
        const auto two = reduced(3, options, 2, gradient)[0];
        CHECK(two[0] == gradient(0, 0));  // this pass reduces nothing
        CHECK(two[1] == averages);
    }
}

TEST_CASE("a batch that a rank discards leaves no trace in the next one") {
    for (const auto codec : all_codecs) {
        CAPTURE(name_of(codec));
        std::vector<std::vector<float>> discarded(3), plain(3);
        for (const bool discards : {false, true})
            run_ranks(3, [&](Session& session) {
                const auto rank = static_cast<std::size_t>(session.rank());
                Model model;
                Nothing nothing;
                DistributedOptimizer optimizer(nothing, model.parameters(), with(codec));
                if (discards) {
                    model.set_gradients(random_values(model_size, 77));
                    if (rank == 1)
                        optimizer.discard("no data");
                    else if (error_of([&] { optimizer.step(); }).value().code() !=
                             ErrorCode::discarded)
                        throw std::logic_error("not discarded");
                }
                model.set_gradients(random_values(model_size, static_cast<unsigned>(rank)));
                optimizer.step();
                (discards ? discarded : plain)[rank] = model.gradients();
            });
        CHECK(discarded == plain);
    }
}

TEST_CASE("a rank that has joined has no part in what the codecs average") {
    for (const auto codec : all_codecs)
        for (const auto op : {ReduceOp::average, ReduceOp::sum}) {
            CAPTURE(name_of(codec), name_of(op));
            std::vector<std::vector<float>> joined(3), pair(2);
            auto options = with(codec);
            options.op = op;
            const auto step = [&](Session& session, auto& into) {
                Model model;
                Nothing nothing;
                DistributedOptimizer optimizer(nothing, model.parameters(), options);
                model.set_gradients(
                    random_values(model_size, static_cast<unsigned>(100 * session.rank())));
                optimizer.step();
                into[static_cast<std::size_t>(session.rank())] = model.gradients();
            };
            run_ranks(3, [&](Session& session) {
                if (session.rank() < 2) step(session, joined);
                join();
            });
            run_ranks(2, [&](Session& session) { step(session, pair); });
            // Integers are finer for two ranks than for three.
            const float tolerance = codec == Codec::int8 ? 0.4F : 1e-5F;
            CHECK(distance(joined[0], pair[0]) < tolerance);
            CHECK(joined[0] == joined[1]);
        }
}

TEST_CASE("ranks with different codecs fail by name") {
    const auto check = [](const std::function<void(Model&, OptimizerOptions&)>& change,
                          const std::vector<std::string>& parts) {
        std::vector<std::string> texts(2);
        run_ranks(2, [&](Session& session) {
            Model model;
            Nothing nothing;
            auto options = with(Codec::topk);
            options.check_values = false;
            if (session.rank() == 1) change(model, options);
            auto parameters = model.parameters();
            if (model.turned) parameters[0].value.shape = parameters[0].gradient.shape = {20, 31};
            DistributedOptimizer optimizer(nothing, parameters, options);
            const auto error = error_of([&] { optimizer.step(); });
            if (error && error->code() == ErrorCode::mismatch)
                texts[static_cast<std::size_t>(session.rank())] = error->what();
        });
        for (const auto& text : texts) {
            CAPTURE(text);
            for (const auto& part : parts) CHECK(text.find(part) != text.npos);
        }
    };
    check([](Model&, auto& options) { options.compression.density = 0.2; },
          {"kinds of compression", "topk, density 0.1", "topk, density 0.2"});
    check([](Model&, auto& options) { options.compression.codec = Codec::onebit; },
          {"kinds of compression", "topk, density 0.1", "onebit, density 0.1"});
    check([](Model& model, auto&) { model.turned = true; },
          {"'matrix'", "shapes of gradients", "[31, 20]", "[20, 31]"});
    check([](Model&, auto& options) { options.compression = {}; }, {"1"});  // other bundles
}

TEST_CASE("what compression does not take is refused by name") {
    const auto refusal = [](const std::function<void(Model&, OptimizerOptions&)>& change,
                            DType dtype = DType::f32) {
        std::string text;
        run_ranks(1, [&](Session&) {
            Model model;
            Nothing nothing;
            auto options = with(Codec::topk);
            change(model, options);
            auto parameters = model.parameters();
            parameters[1].gradient.dtype = dtype;
            const auto error =
                error_of([&] { DistributedOptimizer optimizer(nothing, parameters, options); });
            if (error && error->code() == ErrorCode::invalid_argument) text = error->what();
        });
        return text;
    };
    const auto says = [](const std::string& text, const std::string& part) {
        CAPTURE(text);
        CHECK(text.find("'topk' " + part) != text.npos);
    };
    says(refusal([](Model&, auto& options) { options.op = ReduceOp::adasum; }),
         "takes op average or sum, not 'adasum'");
    says(refusal([](Model&, auto& options) { options.memory = Memory::share; }),
         "and memory 'share'");
    says(refusal([](Model&, auto& options) { options.compression.density = 0; }),
         "has a density of 0");
    says(refusal([](Model&, auto& options) { options.compression.density = 1.5; }),
         "has a density of 1.5");
    says(refusal([](Model&, auto& options) { options.compression.rank = 0; }), "has a rank of 0");
    says(refusal([](Model&, auto&) {}, DType::i32), "takes f32 gradients; 'bias' has i32");
    CHECK(refusal([](Model&, auto&) {}).empty());
    const auto overlapping = [](std::size_t first) {
        std::string text;
        run_ranks(1, [&](Session&) {
            Model model;
            Nothing nothing;
            auto parameters = model.parameters();
            parameters[1].gradient = TensorView(std::span(model.matrix).subspan(first, 7));
            const auto error = error_of(
                [&] { DistributedOptimizer optimizer(nothing, parameters, with(Codec::int8)); });
            if (error && error->code() == ErrorCode::invalid_argument) text = error->what();
        });
        return text;
    };
    CHECK(overlapping(0).find("has the memory of another gradient") != std::string::npos);
    CHECK(overlapping(5).find("overlaps another gradient") != std::string::npos);
}
