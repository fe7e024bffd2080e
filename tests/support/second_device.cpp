// A device "second" whose memory is the CPU's. Its operations are those of the CPU, so its numbers are, too; but
// as on a GPU, an operation on tensors of both devices is an error. It shows code that mixes devices where there
// is no GPU. See the device PrivateUse1 in the documentation of PyTorch.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/extension.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

using at::Tensor;
using Maybe = std::optional<Tensor>;
using Ints = c10::SymIntArrayRef;

namespace {

constexpr auto SECOND = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

// ---- memory, and the current device

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, c10::Device(SECOND, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(SECOND, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SECOND; }
  c10::Device exchangeDevice(c10::Device) const override { return {SECOND, 0}; }
  c10::Device getDevice() const override { return {SECOND, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  at::Device getDeviceFromPtr(void*) const override { return {SECOND, 0}; }
};
Hooks hooks;

// ---- the same memory or a copy, as a tensor of the other device

Tensor shared_with_cpu(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}
Maybe shared_with_cpu(const Maybe& tensor) {
  return tensor && tensor->defined() ? Maybe(shared_with_cpu(*tensor)) : std::nullopt;
}
Maybe copied_to_cpu(const Maybe& tensor) {
  return tensor && tensor->defined() ? Maybe(tensor->cpu()) : std::nullopt;
}
Tensor on_second(const Tensor& tensor) { return tensor.defined() ? tensor.to(c10::Device(SECOND, 0)) : tensor; }

// ---- operations that every device has to have

Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype));
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  shared_with_cpu(to).copy_(shared_with_cpu(from));
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
const Tensor& resize(const Tensor& self, Ints size, std::optional<c10::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == sizes) return self;  // with its strides
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * self.itemsize();
  const auto& storage = self.storage();
  if (storage.nbytes() < bytes) {
    auto larger = memory.allocate(bytes);
    std::memcpy(larger.get(), storage.data(), storage.nbytes());
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage from, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(from), offset, size, stride);
}

// ---- no operation on tensors of both devices

// The fallback of PyTorch takes tensors of several devices. A GPU takes only numbers, and indices, from the CPU.
void refuse_mixed(const std::string& name, const std::vector<Tensor>& tensors) {
  bool second = false, cpu = false;
  for (const auto& tensor : tensors) {
    second |= tensor.defined() && !tensor.device().is_cpu();
    cpu |= tensor.defined() && tensor.device().is_cpu() && tensor.dim() > 0;
  }
  TORCH_CHECK(!(second && cpu), "Expected all tensors to be on the same device in ", name);
}

// ---- operations that the general fallback cannot do: no kernel on the CPU, or statistics that change in place

Tensor convolution(const Tensor& x, const Tensor& weight, const Maybe& bias, Ints stride, Ints padding, Ints dilation,
                   bool transposed, Ints output_padding, c10::SymInt groups) {
  refuse_mixed("convolution", {x, weight, bias.value_or(Tensor())});
  return on_second(at::convolution_symint(x.cpu(), weight.cpu(), copied_to_cpu(bias), stride,
                                          padding, dilation, transposed, output_padding, groups));
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                        Ints stride, Ints padding, Ints dilation, bool transposed,
                                                        Ints output_padding, c10::SymInt groups,
                                                        std::array<bool, 3> wanted) {
  const auto bias = transposed ? weight.sym_size(1) * groups : weight.sym_size(0);
  auto [a, b, c] = at::convolution_backward_symint(gradient.cpu(), x.cpu(),
                                                   weight.cpu(), Ints({bias}), stride, padding, dilation,
                                                   transposed, output_padding, groups, wanted);
  return {on_second(a), on_second(b), on_second(c)};
}
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Maybe& weight, const Maybe& bias,
                                              const Maybe& mean, const Maybe& variance, bool training, double momentum,
                                              double eps) {
  refuse_mixed("batch_norm", {x, weight.value_or(Tensor()), bias.value_or(Tensor()), mean.value_or(Tensor())});
  auto [a, b, c] =
      at::native_batch_norm(shared_with_cpu(x), shared_with_cpu(weight), shared_with_cpu(bias), shared_with_cpu(mean),
                            shared_with_cpu(variance), training, momentum, eps);
  return {on_second(a), on_second(b), on_second(c)};
}
void fallback(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& name = operation.schema().name();
  std::vector<Tensor> tensors;
  for (const auto& value : torch::jit::last(*stack, operation.schema().arguments().size())) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const Tensor& each : value.toTensorVector()) tensors.push_back(each);
    }
  }
  refuse_mixed(name, tensors);  // indices are a list of optional tensors, which may be on the CPU
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register_hooks", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
}
