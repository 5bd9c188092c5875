#include "support/cases/operation_cases.hpp"

#include <cstring>

namespace guozhuang::test {

Tensor contribution(const std::string& name, int rank, DType dtype, Shape shape) {
    return random_tensor(
        dtype, std::move(shape),
        Numbers(std::hash<std::string>{}(name), static_cast<std::uint64_t>(rank)).next());
}

std::vector<Tensor> contributions(const std::string& name, int ranks, DType dtype,
                                  const Shape& shape) {
    std::vector<Tensor> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(contribution(name, rank, dtype, shape));
    return all;
}

std::string label_of(const std::string& operation, DType dtype, ReduceOp op, const Shape& shape) {
    auto label = text_of(operation, " ", name_of(dtype), " ", name_of(op), " [");
    for (const auto extent : shape) label += text_of(extent, ",");
    return label + "]";
}

/// The stream that produces the tensors; none unless they are in memory of a device.
std::optional<StreamRef> stream_of(const Among& among) {
    auto* const memory = memory_of(among.device());
    if (memory == nullptr) return std::nullopt;
    return memory->stream();
}

AllreduceOptions options_of(const Among& among, const std::string& name, const Reduction& how) {
    return {.name = name,
            .op = how.op,
            .prescale = how.prescale,
            .postscale = how.postscale,
            .stream = stream_of(among),
            .process_set = among.set(),
            .timeout = among.timeout()};
}

Options options_of(const Among& among, const std::string& name) {
    return {.name = name,
            .stream = stream_of(among),
            .process_set = among.set(),
            .timeout = among.timeout()};
}

SharedTensor input_of(const Among& among, const std::string& name, DType dtype,
                      const Shape& shape) {
    auto tensor = std::make_shared<Tensor>(contribution(name, among.rank(), dtype, shape));
    tensor->device = among.device();
    return tensor;
}

void check_allreduced(const Among& among, Report& report, const std::string& name,
                      const Tensor& result, const Reduction& how) {
    if (!among.is_part()) report.same_everywhere(name, result.bytes);
    if (!among.is_part() && among.rank() != 0) return;
    const auto fault =
        fault_of(result, 0, contributions(name, among.size(), result.dtype, result.shape), how);
    report.expect(fault.empty(), name + ": " + fault);
}

Finish start_allreduce(const Among& among, const std::string& name, const Reduce& reduce) {
    const auto tensor = input_of(among, name, reduce.dtype, reduce.shape);
    const auto handle = allreduce_async(tensor->view(), options_of(among, name, reduce.how));
    return [among, name, tensor, handle, how = reduce.how](Report& report) {
        handle.wait();
        tensor->fetch();
        check_allreduced(among, report, name, *tensor, how);
    };
}

Finish start_grouped_allreduce(const Among& among, const std::string& name,
                               const std::vector<Reduce>& reduces) {
    const auto tensors = std::make_shared<std::vector<Tensor>>();
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < reduces.size(); ++i)
        tensors->push_back(
            contribution(text_of(name, "/", i), among.rank(), reduces[i].dtype, reduces[i].shape));
    for (auto& tensor : *tensors) {
        tensor.device = among.device();
        views.push_back(tensor.view());
    }
    const auto how = reduces.front().how;
    const auto handle = grouped_allreduce_async(views, options_of(among, name, how));
    return [among, name, tensors, handle, how](Report& report) {
        handle.wait();
        for (std::size_t i = 0; i < tensors->size(); ++i) {
            (*tensors)[i].fetch();
            check_allreduced(among, report, text_of(name, "/", i), (*tensors)[i], how);
        }
    };
}

Finish start_broadcast(const Among& among, const std::string& name, DType dtype, const Shape& shape,
                       int root) {
    const auto tensor = input_of(among, name, dtype, shape);
    const auto handle =
        broadcast_async(tensor->view(), among.rank_of_job(root), options_of(among, name));
    return [name, tensor, handle, root](Report& report) {
        handle.wait();
        tensor->fetch();
        report.expect(tensor->bytes == contribution(name, root, tensor->dtype, tensor->shape).bytes,
                      name + ": not what the root had");
    };
}

std::shared_ptr<GuardedTensor> output_of(const Among& among, const std::string& name, DType dtype,
                                         const Shape& shape) {
    const auto number = std::hash<std::string>{}(name) + static_cast<std::size_t>(among.rank());
    return number % 2 == 0 ? nullptr
                           : std::make_shared<GuardedTensor>(dtype, shape, among.device());
}

namespace {

template <class SomeOptions>
SomeOptions with_output(SomeOptions options, const std::shared_ptr<GuardedTensor>& output) {
    if (output) options.outputs = {output->view()};
    return options;
}

}  // namespace

std::vector<std::byte> elements_of(const Result& result) {
    auto copy = result;
    const auto view = copy.view();
    std::vector<std::byte> elements(view.bytes());
    if (auto* const memory = memory_of(result.device))
        memory->get(elements, view.data);
    else if (!elements.empty())
        std::memcpy(elements.data(), view.data, elements.size());
    return elements;
}

void check_place(Report& report, const std::string& name, const Result& result,
                 GuardedTensor* output) {
    if (output == nullptr)
        return report.expect(result.output == nullptr, name + ": an output that nobody gave");
    auto copy = result;
    report.expect(copy.view().data == output->view().data, name + ": not in the output");
    report.expect(result.bytes.empty() && !result.device_memory, name + ": memory besides");
    report.expect(result.device == output->view().device, name + ": wrong device");
    report.expect(output->is_intact_around(), name + ": written beyond the output");
}

void check_parts(Report& report, const std::string& name, const Result& result,
                 const std::vector<Tensor>& parts) {
    std::vector<std::byte> bytes;
    std::vector<std::int64_t> rows;
    auto shape = parts.front().shape;
    shape[0] = 0;
    for (const auto& part : parts) {
        bytes.insert(bytes.end(), part.bytes.begin(), part.bytes.end());
        rows.push_back(part.shape[0]);
        shape[0] += part.shape[0];
    }
    report.expect(result.dtype == parts.front().dtype, name + ": wrong dtype");
    report.expect(result.rows == rows, name + ": wrong rows");
    report.expect(result.shape == shape, name + ": wrong shape");
    report.expect(elements_of(result) == bytes, name + ": wrong elements");
}

Shape with_rows(std::int64_t rows, const Shape& row) {
    Shape shape{rows};
    for (const auto extent : row) shape.push_back(extent);
    return shape;
}

Finish start_all_gather(const Among& among, const std::string& name, DType dtype,
                        const std::vector<std::int64_t>& rows, const Shape& row) {
    const auto of_rank = [=](std::size_t rank) {
        return contribution(name, static_cast<int>(rank), dtype, with_rows(rows[rank], row));
    };
    const auto tensor =
        input_of(among, name, dtype, with_rows(rows[static_cast<std::size_t>(among.rank())], row));
    const auto output =
        output_of(among, name, dtype,
                  with_rows(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), row));
    const auto handle =
        all_gather_async(tensor->view(), with_output(options_of(among, name), output));
    return [=](Report& report) {
        const auto result = handle.take();
        check_place(report, name, result, output.get());
        std::vector<Tensor> parts;
        for (std::size_t rank = 0; rank < rows.size(); ++rank) parts.push_back(of_rank(rank));
        check_parts(report, name, result, parts);
        tensor->fetch();
        report.expect(tensor->bytes == parts[static_cast<std::size_t>(among.rank())].bytes,
                      name + ": the input was changed");
    };
}

Tensor rows_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
    auto shape = tensor.shape;
    shape[0] = count;
    Tensor part(tensor.dtype, shape);
    const auto row = count_of(std::span(shape).subspan(1)) * size_of(tensor.dtype);
    const auto begin =
        tensor.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * row);
    std::copy_n(begin, part.bytes.size(), part.bytes.begin());
    return part;
}

Finish start_all_to_all(const Among& among, const std::string& name, DType dtype,
                        const Splits& splits, const Shape& row) {
    const auto self = static_cast<std::size_t>(among.rank());
    const auto of_rank = [=](std::size_t rank) {
        const auto rows =
            std::accumulate(splits[rank].begin(), splits[rank].end(), std::int64_t{0});
        return contribution(name, static_cast<int>(rank), dtype, with_rows(rows, row));
    };
    const auto tensor = input_of(among, name, dtype, of_rank(self).shape);
    std::int64_t received = 0;
    for (const auto& of_one : splits) received += of_one[self];
    const auto output = output_of(among, name, dtype, with_rows(received, row));
    const auto handle = all_to_all_async(tensor->view(), splits[self],
                                         with_output(options_of(among, name), output));
    return [=](Report& report) {
        const auto result = handle.take();
        check_place(report, name, result, output.get());
        std::vector<Tensor> parts;
        for (std::size_t from = 0; from < splits.size(); ++from) {
            const auto first = std::accumulate(
                splits[from].begin(), splits[from].begin() + static_cast<std::ptrdiff_t>(self),
                std::int64_t{0});
            parts.push_back(rows_of(of_rank(from), first, splits[from][self]));
        }
        check_parts(report, name, result, parts);
        tensor->fetch();
        report.expect(tensor->bytes == of_rank(self).bytes, name + ": the input was changed");
    };
}

std::pair<std::int64_t, std::int64_t> share_of(std::int64_t rows, int rank, int ranks) {
    const auto each = rows / ranks, more = rows % ranks;
    return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

void check_reduce_scattered(const Among& among, Report& report, const std::string& name,
                            const Result& result, const Reduce& reduce) {
    const auto [first, count] = share_of(reduce.shape[0], among.rank(), among.size());
    auto shape = reduce.shape;
    shape[0] = count;
    report.expect(result.shape == shape && result.dtype == reduce.dtype,
                  name + ": wrong shape or dtype");
    report.expect(result.rows == std::vector<std::int64_t>{count}, name + ": wrong rows");
    Tensor tensor(reduce.dtype, shape);
    const auto elements = elements_of(result);
    report.expect(elements.size() == tensor.bytes.size(), name + ": wrong number of elements");
    tensor.bytes = elements;
    const auto row = count_of(std::span(shape).subspan(1));
    const auto all = contributions(name, among.size(), reduce.dtype, reduce.shape);
    const auto fault = fault_of(tensor, static_cast<std::size_t>(first) * row, all, reduce.how);
    report.expect(fault.empty(), name + ": " + fault);
}

Finish start_reduce_scatter(const Among& among, const std::string& name, const Reduce& reduce) {
    const auto tensor = input_of(among, name, reduce.dtype, reduce.shape);
    auto shape = reduce.shape;
    shape[0] = share_of(shape[0], among.rank(), among.size()).second;
    const auto output = output_of(among, name, reduce.dtype, shape);
    const auto handle = reduce_scatter_async(
        tensor->view(), with_output(options_of(among, name, reduce.how), output));
    return [among, name, tensor, output, handle, reduce](Report& report) {
        const auto result = handle.take();
        check_place(report, name, result, output.get());
        check_reduce_scattered(among, report, name, result, reduce);
        tensor->fetch();
        const bool intact =
            tensor->bytes == contribution(name, among.rank(), reduce.dtype, reduce.shape).bytes;
        report.expect(intact, name + ": the input was changed");
    };
}

Finish start_message(const Among& among, const std::string& name, const Message& message) {
    const auto sent = contribution(name, message.from, message.dtype, message.shape);
    std::vector<Handle> handles;
    SharedTensor received;
    const PointToPointOptions options{
        .tag = message.tag, .stream = stream_of(among), .process_set = among.set()};
    if (among.rank() == message.to) {
        received = std::make_shared<Tensor>(message.dtype, message.shape);
        received->device = among.device();
        handles.push_back(recv_async(received->view(), among.rank_of_job(message.from), options));
    }
    if (among.rank() == message.from) {
        const auto copy = std::make_shared<Tensor>(sent);
        if (message.tag % 2 == 0) copy->device = among.device();  // the others change kinds
        auto its = options;
        its.keep_alive = copy;
        handles.push_back(send_async(copy->view(), among.rank_of_job(message.to), its));
    }
    return [name, sent, handles, received](Report& report) {
        for (const auto& handle : handles) handle.wait();
        if (!received) return;
        received->fetch();
        report.expect(received->bytes == sent.bytes, name + ": not what was sent");
    };
}

Finish start_barrier(const Among& among, const std::string& name) {
    return [handle = barrier_async(options_of(among, name))](Report&) { handle.wait(); };
}

}  // namespace guozhuang::test
