// Views of Eigen's matrices with rows and columns, and matrices in results.
#include <guozhuang/eigen.hpp>
#include <guozhuang/guozhuang.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("a matrix is a tensor of two dimensions, as it lies in memory") {
    Eigen::MatrixXf columns(3, 4);
    eigen::RowMajor<double> rows(3, 4);
    Eigen::Matrix<Eigen::half, 5, 1> halves;
    Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, 1> shorter(7);
    CHECK(eigen::view(columns).shape == Shape{4, 3});
    CHECK(eigen::view(columns).data == columns.data());
    CHECK(eigen::view(rows).shape == Shape{3, 4});
    CHECK(eigen::view(rows).dtype == DType::f64);
    CHECK(eigen::view(halves).dtype == DType::f16);
    CHECK(eigen::view(shorter).dtype == DType::bf16);
    CHECK(eigen::view(shorter).shape == Shape{7});
    CHECK(eigen::view(shorter.transpose()).shape == Shape{7});
}

TEST_CASE("what is const, a map or a part is a tensor, if its elements lie side by side") {
    Eigen::MatrixXf columns(3, 4);
    const auto& same = columns;
    CHECK(eigen::view(same).view().shape == Shape{4, 3});
    CHECK(eigen::view(same).view().data == columns.data());
    Eigen::Map<Eigen::MatrixXf> map(columns.data(), 2, 6);
    const Eigen::Map<const eigen::RowMajor<float>> const_map(columns.data(), 2, 6);
    const TensorView writable = eigen::view(map);
    CHECK(writable.shape == Shape{6, 2});
    CHECK(eigen::view(const_map).view().shape == Shape{2, 6});
    const TensorView part = eigen::view(columns.rightCols(2));
    CHECK(part.data == &columns(0, 2));
    CHECK(eigen::view(same.rightCols(2)).view().data == &columns(0, 2));
    const auto is_refused = error_of([&] { eigen::view(columns.topRows(2)); });
    CHECK((is_refused && is_refused->code() == ErrorCode::invalid_argument));
}

TEST_CASE("a tensor is a matrix, if its elements are what they are taken for") {
    std::vector<int> numbers{1, 2, 3, 4, 5, 6};
    auto matrix = eigen::matrix_of<int>(TensorView(numbers, {2, 3}));
    CHECK((matrix.rows() == 2 && matrix.cols() == 3 && matrix(1, 0) == 4));
    matrix(1, 2) = 7;
    CHECK(numbers[5] == 7);
    CHECK(eigen::matrix_of<int>(TensorView(numbers, {3, 1, 2})).cols() == 2);
    CHECK(eigen::matrix_of<int>(TensorView(numbers[0])).size() == 1);
    const auto none = eigen::matrix_of<int>(TensorView(numbers.data(), {0, 3}));
    CHECK((none.rows() == 0 && none.cols() == 3));
    CHECK(eigen::matrix_of<int>(TensorView(numbers.data(), {2, 0})).rows() == 2);
    const auto is_refused = [](const auto& act) {
        const auto error = error_of(act);
        return error && error->code() == ErrorCode::invalid_argument;
    };
    TensorView strided(numbers, {2, 3});
    strided.strides = {1, 2};
    const TensorView elsewhere(numbers.data(), {6}, {DeviceKind::cuda, 0});
    CHECK(is_refused([&] { eigen::matrix_of<float>(TensorView(numbers)); }));
    CHECK(is_refused([&] { eigen::matrix_of<int>(strided); }));
    CHECK(is_refused([&] { eigen::matrix_of<int>(elsewhere); }));
}

TEST_CASE("rows of matrices are gathered, and columns of those that lie by columns") {
    run_ranks(3, [](Session& session) {
        eigen::RowMajor<float> own(1, 2);
        own.setConstant(static_cast<float>(session.rank()));
        auto result = all_gather(eigen::view(own));
        const auto all = eigen::matrix_of<float>(result);
        const bool is_right =
            all.rows() == 3 && all.cols() == 2 && all(2, 1) == 2 && all(1, 0) == 1;
        Eigen::VectorXd several = Eigen::VectorXd::Constant(session.rank() + 1, session.rank());
        const auto gathered = all_gather(eigen::view(std::as_const(several)));
        const std::vector<double> in_turn{0, 1, 1, 2, 2, 2};
        Eigen::MatrixXd sums = Eigen::MatrixXd::Constant(2, 2, 1);
        allreduce(eigen::view(sums));
        if (!is_right || sums(1, 0) != 3 || !std::ranges::equal(gathered.as<double>(), in_turn))
            throw std::runtime_error("other values");
    });
}
