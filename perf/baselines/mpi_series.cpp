#include <mpi.h>

#include <string>
#include <vector>

#include "baselines/baseline.hpp"
#include "baselines/mpi_types.hpp"

namespace guozhuang::perf {
namespace {

/// If it does not reduce it moves elements as bytes, so every dtype works.
class MpiSeries final : public Series {
public:
    MpiSeries(std::string_view name, MPI_Comm ranks, const Case& test, std::span<std::byte> input,
              std::span<std::byte> output)
        : name_(name),
          ranks_(ranks),
          test_(test),
          input_(input),
          output_(output.first(in_place() ? 0 : test.output_count() * size_of(test.dtype))) {
        if (reduces(test.collective)) {
            type_ = mpi_type(test.dtype);
            op_ = mpi_op(test.op);
        }
        const std::size_t unit = reduces(test.collective) ? 1 : size_of(test.dtype);
        count_ = mpi_count(test.count * unit);
        even_ = test.count % static_cast<std::size_t>(test.ranks) == 0;
        for (int r = 0; r < test.ranks; ++r) {
            const auto [first, count] = test.share(r);
            firsts_.push_back(mpi_count(first * unit));
            counts_.push_back(mpi_count(count * unit));
        }
        own_ = counts_[static_cast<std::size_t>(test.rank)];
        if (test.collective == Collective::all_to_all) {
            for (int r = 0; r < test.ranks; ++r)
                own_firsts_.push_back(
                    mpi_count(static_cast<std::size_t>(r) * static_cast<std::size_t>(own_)));
            own_counts_.assign(own_firsts_.size(), own_);
        }
    }

    std::string_view name() const noexcept override { return name_; }

    void run() override { check_mpi(call()); }

    std::span<const std::byte> result() const override {
        return in_place() ? input_.first(test_.output_count() * size_of(test_.dtype))
                          : std::span<const std::byte>(output_);
    }

private:
    bool in_place() const noexcept {
        return test_.collective == Collective::allreduce ||
               test_.collective == Collective::broadcast || test_.collective == Collective::barrier;
    }

    /// Equal shares use the plain call, for which MPI may be faster.
    int call() {
        switch (test_.collective) {
            case Collective::allreduce:
                return MPI_Allreduce(MPI_IN_PLACE, input_.data(), count_, type_, op_, ranks_);
            case Collective::broadcast:
                return MPI_Bcast(input_.data(), count_, type_, Case::root, ranks_);
            case Collective::barrier: return MPI_Barrier(ranks_);
            case Collective::all_gather: return all_gather();
            case Collective::reduce_scatter: return reduce_scatter();
            case Collective::all_to_all: return all_to_all();
        }
        return MPI_ERR_OTHER;
    }

    int all_gather() {
        if (even_)
            return MPI_Allgather(input_.data(), own_, type_, output_.data(), own_, type_, ranks_);
        return MPI_Allgatherv(input_.data(), own_, type_, output_.data(), counts_.data(),
                              firsts_.data(), type_, ranks_);
    }

    int reduce_scatter() {
        if (even_)
            return MPI_Reduce_scatter_block(input_.data(), output_.data(), own_, type_, op_,
                                            ranks_);
        return MPI_Reduce_scatter(input_.data(), output_.data(), counts_.data(), type_, op_,
                                  ranks_);
    }

    int all_to_all() {
        if (even_)
            return MPI_Alltoall(input_.data(), own_, type_, output_.data(), own_, type_, ranks_);
        return MPI_Alltoallv(input_.data(), counts_.data(), firsts_.data(), type_, output_.data(),
                             own_counts_.data(), own_firsts_.data(), type_, ranks_);
    }

    std::string_view name_;
    MPI_Comm ranks_;
    Case test_;
    std::span<std::byte> input_;
    std::span<std::byte> output_;
    MPI_Datatype type_ = MPI_BYTE;
    MPI_Op op_ = MPI_OP_NULL;
    int count_ = 0;
    bool even_ = true;
    std::vector<int> firsts_, counts_;          // each rank's share
    int own_ = 0;                               // this rank's
    std::vector<int> own_firsts_, own_counts_;  // what every rank sends to this one
};

class MpiBaseline : public Baseline {
public:
    explicit MpiBaseline(std::string_view name = "mpi", MPI_Comm ranks = MPI_COMM_WORLD)
        : name_(name), ranks_(ranks) {}

    std::string_view name() const noexcept override { return name_; }

    std::unique_ptr<Series> series(const Case& test, std::span<std::byte> input,
                                   std::span<std::byte> output) override {
        return std::make_unique<MpiSeries>(name_, ranks_, test, input, output);
    }

    void sum(std::span<const std::span<std::byte>> buffers) override {
        for (const auto floats : buffers) {
            const int count = mpi_count(floats.size() / sizeof(float));
            check_mpi(
                MPI_Allreduce(MPI_IN_PLACE, floats.data(), count, MPI_FLOAT, MPI_SUM, ranks_));
        }
    }

private:
    std::string_view name_;
    MPI_Comm ranks_;
};

/// A variable of Open MPI, which may be read, and some of which may be written.
class Variable {
public:
    /// Throws Unavailable if MPI has no such variable.
    explicit Variable(const std::string& name) {
        int index = 0, count = 0, provided = 0;
        MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided);
        if (MPI_T_cvar_get_index(name.c_str(), &index) != MPI_SUCCESS ||
            MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) != MPI_SUCCESS) {
            MPI_T_finalize();
            throw Unavailable(MpiJob::library() + " has no variable " + name);
        }
    }
    ~Variable() {
        MPI_T_cvar_handle_free(&handle_);
        MPI_T_finalize();
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

    int value() const {
        int value = 0;
        MPI_T_cvar_read(handle_, &value);
        return value;
    }
    /// Throws Unavailable if MPI refuses it.
    void set(int number) {
        if (MPI_T_cvar_write(handle_, &number) != MPI_SUCCESS || value() != number)
            throw Unavailable("MPI does not let its algorithm be chosen");
    }

private:
    MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
};

/// Open MPI's ring. A communicator keeps the algorithm that is set when it is made.
class MpiRingBaseline final : public MpiBaseline {
public:
    MpiRingBaseline() : MpiBaseline("mpi_ring", make()) {}

private:
    static MPI_Comm make() {
        if (Variable("coll_tuned_use_dynamic_rules").value() == 0)
            throw Unavailable("mpirun was not given --mca coll_tuned_use_dynamic_rules 1");
        constexpr int as_it_comes = 0, ring = 4;
        Variable algorithm("coll_tuned_allreduce_algorithm");
        algorithm.set(ring);
        MPI_Comm ranks = MPI_COMM_NULL;
        check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &ranks));  // MPI_Finalize() frees it
        algorithm.set(as_it_comes);
        return ranks;
    }
};

}  // namespace

std::unique_ptr<Baseline> make_mpi_ring_baseline(const MpiJob&, const TensorDevice* device) {
    if (device != nullptr) throw Refusal("--peer mpi_ring: MPI is not given memory of a device");
    return std::make_unique<MpiRingBaseline>();
}

std::unique_ptr<Baseline> make_mpi_baseline(const MpiJob&, const TensorDevice* device) {
    if (device != nullptr)
        throw Refusal("--peer mpi: MPI is not given memory of a device; compare with staged");
    return std::make_unique<MpiBaseline>();
}

}  // namespace guozhuang::perf
