// The ranks of a job as a grid.
#include <guozhuang/grid.hpp>
#include <guozhuang/guozhuang.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("neighbours share layers, ranks beside them samples, and those far away are stages") {
    std::vector<std::vector<int>> data(8), tensor(8), stages(8);
    run_ranks(8, [&](Session& session) {
        const Grid grid({.data = 2, .tensor = 2, .pipeline = 2});
        const auto rank = static_cast<std::size_t>(session.rank());
        data[rank] = grid.data().ranks();
        tensor[rank] = grid.tensor().ranks();
        stages[rank] = {grid.previous_stage(), grid.next_stage()};
        if (grid.rank_at(grid.position()) != session.rank()) stages[rank].clear();
    });
    CHECK(data[0] == std::vector{0, 2});
    CHECK(data[5] == std::vector{5, 7});
    CHECK(tensor[0] == std::vector{0, 1});
    CHECK(tensor[6] == std::vector{6, 7});
    CHECK(stages[1] == std::vector{-1, 5});
    CHECK(stages[5] == std::vector{1, -1});
}

TEST_CASE("a grid has each rank once, in every shape") {
    for (const GridShape shape :
         {GridShape{1, 1, 1}, {4, 1, 1}, {1, 4, 1}, {1, 1, 4}, {2, 3, 1}, {3, 1, 2}}) {
        const int ranks = shape.data * shape.tensor * shape.pipeline;
        std::vector<int> sums(static_cast<std::size_t>(ranks));
        run_ranks(ranks, [&](Session& session) {
            const Grid grid(shape);
            // Over both sets in turn: over all ranks of a stage.
            int stage = 1 << session.rank();
            allreduce(stage, {.process_set = grid.tensor()});
            allreduce(stage, {.process_set = grid.data()});
            sums[static_cast<std::size_t>(session.rank())] = stage;
        });
        const int width = shape.data * shape.tensor;
        for (int rank = 0; rank < ranks; ++rank)
            CHECK(sums[static_cast<std::size_t>(rank)] == ((1 << width) - 1)
                                                              << rank / width * width);
    }
}

TEST_CASE("ranks with different shapes fail by name") {
    std::vector<std::string> texts(4);
    run_ranks(4, [&](Session& session) {
        const auto error = error_of([&] {
            const Grid grid(session.rank() == 2 ? GridShape{.tensor = 4} : GridShape{.data = 4});
        });
        if (error && error->code() == ErrorCode::mismatch)
            texts[static_cast<std::size_t>(session.rank())] = error->what();
    });
    for (const auto& text : texts) {
        CAPTURE(text);
        CHECK(text.find("{.data = 4, .tensor = 1, .pipeline = 1}") != text.npos);
        CHECK(text.find("{.data = 1, .tensor = 4, .pipeline = 1}") != text.npos);
    }
}

TEST_CASE("a grid that does not fit the ranks is refused") {
    std::vector<std::string> texts;
    run_ranks(1, [&](Session&) {
        for (const GridShape shape : {GridShape{2, 1, 1}, {0, 1, 1}, {-1, -1, 1}}) {
            const auto error = error_of([&] { const Grid grid(shape); });
            texts.push_back(error && error->code() == ErrorCode::invalid_argument ? error->what()
                                                                                  : "");
        }
        const auto error = error_of([&] { Grid({}).rank_at({.data = 1}); });
        texts.push_back(error ? error->what() : "");
    });
    CHECK(texts[0].find("{.data = 2, .tensor = 1, .pipeline = 1} does not fit a job of 1 rank") !=
          std::string::npos);
    CHECK_FALSE(texts[1].empty());
    CHECK_FALSE(texts[2].empty());
    CHECK(texts[3].find("is no position in") != std::string::npos);
}
