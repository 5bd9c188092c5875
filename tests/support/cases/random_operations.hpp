#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Operations drawn from a seed that all ranks share. They are submitted in rounds; within a round
/// every rank submits in its own order, and waits in another.
namespace guozhuang::test {

class RandomOperations {
public:
    RandomOperations(const Among& among, std::uint64_t seed)
        : among_(among), common_(seed), own_(seed, 1u + static_cast<std::uint64_t>(among.rank())) {}

    /// Returns how many of them are collectives.
    std::size_t run(Report& report, int rounds) {
        for (int round = 0; round < rounds; ++round) {
            auto steps = draw_round();
            shuffle(steps);
            std::vector<Finish> started;
            for (const auto& step : steps) started.push_back(step());
            shuffle(started);
            for (const auto& finish : started) finish(report);
        }
        return collectives_;
    }

    using Step = std::function<Finish()>;

    /// The operations of a round, to be started in any order.
    std::vector<Step> draw_round() {
        std::vector<Step> steps;
        for (auto left = 1 + common_.below(12); left > 0; --left)
            steps.push_back(draw_step(static_cast<std::uint16_t>(left)));
        return steps;
    }

    /// In this rank's own order.
    template <class T>
    void shuffle(std::vector<T>& items) {
        for (std::size_t i = items.size(); i > 1; --i)
            std::swap(items[i - 1], items[own_.below(i)]);
    }

private:
    Step draw_step(std::uint16_t tag) {
        // Names come again, with other contents.
        const auto name = text_of("random ", common_.below(40), " ", tag);
        const auto dtype = draw_dtype();
        const int first = draw_rank(), second = draw_rank();
        const auto& among = among_;
        const auto kind = common_.below(8);
        if (kind < 7) ++collectives_;
        switch (kind) {
            case 0:
            case 1:
                return [=, reduce = draw_reduce()] { return start_allreduce(among, name, reduce); };
            case 2:
                return [=, reduces = draw_group()] {
                    return start_grouped_allreduce(among, name, reduces);
                };
            case 3:
                return [=, shape = draw_shape()] {
                    return start_broadcast(among, name, dtype, shape, first);
                };
            case 4:
                return [=, rows = draw_rows()] {
                    return start_all_gather(among, name, dtype, rows, {3});
                };
            case 5:
                return [=, splits = draw_splits()] {
                    return start_all_to_all(among, name, dtype, splits, {2});
                };
            case 6:
                return [=, reduce = draw_scattered()] {
                    return start_reduce_scatter(among, name, reduce);
                };
            default: break;
        }
        if (common_.below(4) == 0) return [=] { return start_barrier(among, name); };
        return [=, shape = draw_shape()] {
            return start_message(among, name, {first, second, tag, dtype, shape});
        };
    }

    DType draw_dtype() { return all_dtypes[common_.below(std::size(all_dtypes))]; }
    int draw_rank() {
        return static_cast<int>(common_.below(static_cast<std::size_t>(among_.size())));
    }
    std::int64_t draw_count() {
        constexpr std::size_t limits[] = {3, 40, 3000, 30'000};
        return static_cast<std::int64_t>(common_.below(limits[common_.below(4)]));
    }
    Shape draw_shape() { return common_.below(10) == 0 ? Shape{} : Shape{draw_count()}; }

    Reduce draw_reduce() {
        Reduce reduce{draw_dtype(),
                      {draw_count()},
                      {all_reduce_ops[common_.below(std::size(all_reduce_ops))]}};
        if (!is_defined(reduce.how.op, reduce.dtype)) reduce.how.op = ReduceOp::max;
        if (is_floating(reduce.dtype) && common_.below(4) == 0) reduce.how.postscale = 0.75;
        return reduce;
    }
    Reduce draw_scattered() {
        auto reduce = draw_reduce();
        if (reduce.how.op == ReduceOp::adasum) reduce.how.op = ReduceOp::average;
        return reduce;
    }
    std::vector<Reduce> draw_group() {
        std::vector<Reduce> reduces(1 + common_.below(5));
        for (auto& reduce : reduces) {
            reduce = draw_reduce();
            reduce.how = {ReduceOp::min};
        }
        return reduces;
    }
    std::vector<std::int64_t> draw_rows() {
        std::vector<std::int64_t> rows;
        for (int rank = 0; rank < among_.size(); ++rank)
            rows.push_back(common_.below(3) == 0 ? 0 : draw_count() / 4);
        return rows;
    }
    Splits draw_splits() {
        Splits splits;
        for (int from = 0; from < among_.size(); ++from) {
            splits.emplace_back();
            for (int to = 0; to < among_.size(); ++to)
                splits.back().push_back(common_.below(3) == 0 ? 0 : draw_count() / 8);
        }
        return splits;
    }

    Among among_;
    Numbers common_, own_;
    std::size_t collectives_ = 0;
};

/// Runs this many rounds of random operations and checks each operation.
RankCase random_operations(std::uint64_t seed, int rounds);

/// Random operations of many runs: RandomTotals counts how many collectives they have run and how
/// many problems were found, and puts that into the one line that a slow test prints.
class RandomTotals {
public:
    /// Like random_operations(); rank 0 adds the collectives to the total.
    RankCase count(std::uint64_t seed, int rounds) {
        return [=, this](Session& session, Report& report) {
            const auto collectives = RandomOperations(session, seed).run(report, rounds);
            if (session.rank() == 0) collectives_ += collectives;
        };
    }
    /// Adds the problems, one line each, to the total, and returns them.
    const std::string& found(const std::string& problems) {
        wrong_ += static_cast<std::size_t>(std::ranges::count(problems, '\n'));
        return problems;
    }
    std::string text() const {
        return text_of("random collectives: ", collectives_, ", wrong results: ", wrong_);
    }

private:
    std::size_t collectives_ = 0, wrong_ = 0;
};

}  // namespace guozhuang::test
