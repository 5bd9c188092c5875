// Products of matrices beside allreduces, on the GPU of each rank: gpu_beside SIZE BYTES, under
// mpirun, prints one JSON object with the time of either alone and of both at once.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include "fashion_mnist_cuda/device.hpp"
#include "fashion_mnist_cuda/kernels.hpp"
#include "gpu/rank_tensor.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr int times = 7;

/// Products of two square matrices of ones, on a stream of their own.
class Products {
public:
    explicit Products(std::size_t size) : size_(size), one_(size * size), other_(size * size) {
        const std::vector<float> ones(size * size, 1);
        fashion::cuda::copy<float>(one_.all(), ones);
    }
    void start(int count) {
        const auto ones = fashion::cuda::Matrix::row_major(one_.data(), size_, size_);
        for (int i = 0; i < count; ++i)
            fashion::cuda::multiply(ones, ones, nullptr, other_.data(), stream_.native);
    }
    void synchronize() const { expect(cudaStreamSynchronize(stream_.native), "it has failed"); }
    bool are_right() const {
        std::vector<float> all(other_.size());
        fashion::cuda::copy<float>(all, other_.all());
        return std::ranges::count(all, static_cast<float>(size_)) == std::ssize(all);
    }

private:
    std::size_t size_;
    fashion::cuda::DeviceArray<float> one_, other_;
    const TestStream stream_;
};

/// How long each takes from a common start; 0 for what does not run.
struct Times {
    double products_us, allreduces_us;
};

class Beside {
public:
    Beside(int device, std::size_t size, std::size_t bytes)
        : device_(device), products_(size), tensor_(device, bytes) {}

    /// The median of some runs, of the slowest rank. Collective.
    Times measure(int products, int allreduces) {
        std::vector<double> of_products, of_allreduces;
        for (int i = 0; i < times; ++i) {
            const auto [products_us, allreduces_us] = run(products, allreduces);
            of_products.push_back(products_us);
            of_allreduces.push_back(allreduces_us);
        }
        return {median_of_slowest(of_products), median_of_slowest(of_allreduces)};
    }
    std::int64_t wrong() const {
        std::int64_t wrong = products_.are_right() ? 0 : 1;
        allreduce(wrong);
        return wrong + tensor_.wrong();
    }

private:
    Times run(int products, int allreduces) {
        Times taken{};
        barrier();
        const auto start = Clock::now();
        products_.start(products);
        std::thread watcher([&] {
            cudaSetDevice(device_);
            products_.synchronize();
            if (products > 0) taken.products_us = microseconds_since(start);
        });
        for (int i = 0; i < allreduces; ++i)
            tensor_.start(ReduceOp::average).wait(tensor_.stream());
        tensor_.synchronize();
        if (allreduces > 0) taken.allreduces_us = microseconds_since(start);
        watcher.join();
        return taken;
    }

    const int device_;
    Products products_;
    const RankTensor tensor_;
};

/// As many allreduces as take about as long as some products, so that either runs all the time.
void measure(Session& session, std::size_t size, std::size_t bytes) {
    constexpr int products = 10;
    Beside beside(fashion::cuda::use_device(session.local_rank()), size, bytes);
    const double one_us = beside.measure(0, 1).allreduces_us;  // of the slowest, so all agree
    const double products_us = beside.measure(products, 0).products_us;
    const int allreduces = std::max(1, static_cast<int>(std::lround(products_us / one_us)));
    const double allreduces_us = beside.measure(0, allreduces).allreduces_us;
    const auto both = beside.measure(products, allreduces);
    const nlohmann::ordered_json found = {{"wrong", beside.wrong()},
                                          {"products", products},
                                          {"products_us", products_us},
                                          {"products_beside_us", both.products_us},
                                          {"allreduces", allreduces},
                                          {"allreduces_us", allreduces_us},
                                          {"allreduces_beside_us", both.allreduces_us}};
    if (session.rank() == 0) std::puts(found.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
    return run(&argc, &argv, [&](Session& session) {
        const std::span arguments(argv, static_cast<std::size_t>(argc));
        if (argc != 3) throw std::invalid_argument("usage: gpu_beside SIZE BYTES");
        measure(session, std::strtoull(arguments[1], nullptr, 10),
                std::strtoull(arguments[2], nullptr, 10));
        return 0;
    });
}
