#include "kernels/matmul.h"

#include <algorithm>
#include <vector>

#include "kernels/isa.h"
#include "kernels/matmul_blocks.h"

namespace pp::kernels::cpu {

void MatmulRun(const MatmulRunArgs& args);

struct Matmul::Impl {
  int threads;
  std::vector<MatmulShape> shapes;
};

Matmul::Matmul(int threads) : impl_(new Impl{.threads = threads, .shapes = {}}) {}
Matmul::~Matmul() = default;
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;

int Matmul::Prepare(const MatmulShape& shape) {
  const MatmulShape full = Whole(shape);
  auto& shapes = impl_->shapes;
  const auto at = std::find(shapes.begin(), shapes.end(), full);
  const int id = static_cast<int>(at - shapes.begin());
  if (at == shapes.end()) shapes.push_back(full);
  return id;
}

size_t Matmul::ScratchBytes(MatmulNumbers numbers) {
  return ScratchFloats(numbers) * sizeof(float);
}

void Matmul::Run(int id, const MatmulArgs& args) {
  MatmulRun({.shape = impl_->shapes[id], .args = args, .threads = impl_->threads});
}

}  // namespace pp::kernels::cpu
