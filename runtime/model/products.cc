#include "runtime/model/products.h"

#include <algorithm>
#include <iterator>

#include "runtime/device/activations.h"

namespace pp {

using kernels::Epilogue;
using kernels::Operands;
using kernels::Update;
using kernels::WithBias;
using kernels::WithResidual;

namespace {

struct Numbers {
  kernels::MatmulNumbers to_acts, to_weights;
};

Numbers NumbersOf(Dtype dtype) {
  return ForActivations(dtype, []<typename N>() {
    return Numbers{kernels::kForwardNumbers<N>, kernels::kWeightNumbers<N>};
  });
}

AdapterProducts ProductsOf(const Operator& op, const Adapter& adapter, int64_t n,
                           const Numbers& numbers) {
  const int64_t r = adapter.rank;
  AdapterProducts products;
  products.down = {
      .m = n, .n = r, .k = op.in, .operands = Operands::kNT, .numbers = numbers.to_acts};
  products.up = {.m = n,
                 .n = adapter.out,
                 .k = r,
                 .operands = Operands::kNT,
                 .residual = WithResidual::kYes,
                 .ldc = op.out,
                 .numbers = numbers.to_acts};
  products.back = {.m = n,
                   .n = r,
                   .k = adapter.out,
                   .operands = Operands::kNN,
                   .lda = op.out,
                   .numbers = numbers.to_acts};
  products.into = {.m = n,
                   .n = op.in,
                   .k = r,
                   .operands = Operands::kNN,
                   .residual = WithResidual::kYes,
                   .numbers = numbers.to_acts};
  for (const Update update : {Update::kSet, Update::kAdd}) {
    products.weight_a[static_cast<int>(update)] = {.m = r,
                                                   .n = op.in,
                                                   .k = n,
                                                   .operands = Operands::kTN,
                                                   .update = update,
                                                   .numbers = numbers.to_weights};
    products.weight_b[static_cast<int>(update)] = {.m = adapter.out,
                                                   .n = r,
                                                   .k = n,
                                                   .operands = Operands::kTN,
                                                   .update = update,
                                                   .lda = op.out,
                                                   .numbers = numbers.to_weights};
  }
  return products;
}

}  // namespace

LinearProducts ProductsOf(const Job& job, const std::vector<StageOperator>& operators, size_t index,
                          int peer) {
  const StageOperator& placed = operators[index];
  const Operator& op = placed.op;
  const Numbers numbers = NumbersOf(job.dtype);
  const int64_t n = job.tokens(), in = op.in, out = op.out;
  const bool transposed = op.matrix == Matrix::kOutIn;
  const bool adds = op.cut != Cut::kIn || peer == 0;
  LinearProducts products{.trained = op.parameters[0].trainable};
  products.forward = {
      .m = n,
      .n = out,
      .k = in,
      .operands = transposed ? Operands::kNT : Operands::kNN,
      .bias = op.has_bias() && adds ? WithBias::kYes : WithBias::kNo,
      .residual = placed.of(Keep::kStash).stream && adds ? WithResidual::kYes : WithResidual::kNo,
      .numbers = numbers.to_acts};
  products.input = {.m = n,
                    .n = in,
                    .k = out,
                    .operands = transposed ? Operands::kNN : Operands::kNT,
                    .numbers = numbers.to_acts};
  for (const Update update : {Update::kSet, Update::kAdd})
    products.weight[static_cast<int>(update)] = {.m = transposed ? out : in,
                                                 .n = transposed ? in : out,
                                                 .k = n,
                                                 .operands = Operands::kTN,
                                                 .update = update,
                                                 .numbers = numbers.to_weights};
  for (const Adapter& adapter : op.adapters)
    products.adapters.push_back(ProductsOf(op, adapter, n, numbers));
  if (!op.adapters.empty()) return products;  // which have to be added before a Gelu
  const auto is_gelu = [&](size_t i) {
    return i < operators.size() && operators[i].op.kind == OperatorKind::kGelu &&
           operators[i].op.gelu == GeluForm::kTanh;  // epilogues have no other one
  };
  // What peers have yet to add up is incomplete. And RE must not recompute without the Linear what
  // a forward computed with it: the bits might differ.
  if (is_gelu(index + 1) && op.cut != Cut::kIn &&
      (placed.recomputed || !operators[index + 1].recomputed))
    products.next = Epilogue::kGelu;
  if (index > 0 && is_gelu(index - 1) && op.cut != Cut::kOut)
    products.previous = Epilogue::kGeluBackward;
  return products;
}

namespace {

// Those of the gradients of what is trained, and of adapters.
std::vector<kernels::MatmulShape> OthersOf(const LinearProducts& products) {
  std::vector<kernels::MatmulShape> others;
  if (products.trained) others.assign(std::begin(products.weight), std::end(products.weight));
  for (const AdapterProducts& of : products.adapters) {
    others.insert(others.end(), {of.down, of.up, of.back, of.into});
    others.insert(others.end(), std::begin(of.weight_a), std::end(of.weight_a));
    others.insert(others.end(), std::begin(of.weight_b), std::end(of.weight_b));
  }
  return others;
}

}  // namespace

std::vector<kernels::MatmulShape> AllProducts(const Job& job) {
  std::vector<kernels::MatmulShape> all;
  const auto add = [&](kernels::MatmulShape shape, Epilogue epilogue) {
    shape.epilogue = epilogue;
    if (std::find(all.begin(), all.end(), shape) == all.end()) all.push_back(shape);
  };
  for (int cell = 0; cell < job.stages() * job.shapes.count(); ++cell) {
    const Job of_shape = job.OfShape(cell / job.stages());
    const StageLayout layout = LayoutStage(of_shape, cell % job.stages());
    for (size_t i = 0; i < layout.operators.size(); ++i) {
      if (layout.operators[i].op.kind != OperatorKind::kLinear) continue;
      for (int peer = 0; peer < std::min(job.tp, 2); ++peer) {
        const LinearProducts products = ProductsOf(of_shape, layout.operators, i, peer);
        add(products.forward, products.next);
        add(products.input, products.previous);
        for (const kernels::MatmulShape& shape : OthersOf(products)) add(shape, Epilogue::kNone);
      }
    }
  }
  return all;
}

}  // namespace pp
