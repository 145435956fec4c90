#include "runtime/model/products.h"

#include <algorithm>
#include <utility>

#include "runtime/device/activations.h"

namespace pp {

using kernels::Epilogue;
using kernels::Operands;
using kernels::Update;
using kernels::WithBias;
using kernels::WithResidual;

LinearProducts ProductsOf(const Job& job, const std::vector<StageOperator>& operators, size_t index,
                          int peer) {
  const StageOperator& placed = operators[index];
  const Operator& op = placed.op;
  const auto [to_acts, to_weights] = ForActivations(job.dtype, []<typename N>() {
    return std::pair{kernels::kForwardNumbers<N>, kernels::kWeightNumbers<N>};
  });
  const int64_t n = job.tokens(), in = op.in, out = op.out;
  const bool transposed = op.matrix == Matrix::kOutIn;
  const bool adds = op.cut != Cut::kIn || peer == 0;
  LinearProducts products;
  products.forward = {
      .m = n,
      .n = out,
      .k = in,
      .operands = transposed ? Operands::kNT : Operands::kNN,
      .bias = op.parameters.size() > 1 && adds ? WithBias::kYes : WithBias::kNo,
      .residual = placed.of(Keep::kStash).stream && adds ? WithResidual::kYes : WithResidual::kNo,
      .numbers = to_acts};
  products.input = {.m = n,
                    .n = in,
                    .k = out,
                    .operands = transposed ? Operands::kNN : Operands::kNT,
                    .numbers = to_acts};
  for (const Update update : {Update::kSet, Update::kAdd})
    products.weight[static_cast<int>(update)] = {.m = transposed ? out : in,
                                                 .n = transposed ? in : out,
                                                 .k = n,
                                                 .operands = Operands::kTN,
                                                 .update = update,
                                                 .numbers = to_weights};
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

std::vector<kernels::MatmulShape> AllProducts(const Job& job) {
  std::vector<kernels::MatmulShape> all;
  const auto add = [&](kernels::MatmulShape shape, Epilogue epilogue) {
    shape.epilogue = epilogue;
    if (std::find(all.begin(), all.end(), shape) == all.end()) all.push_back(shape);
  };
  for (int stage = 0; stage < job.stages(); ++stage) {
    const StageLayout layout = LayoutStage(job, stage);
    for (size_t i = 0; i < layout.operators.size(); ++i) {
      if (layout.operators[i].op.kind != OperatorKind::kLinear) continue;
      for (int peer = 0; peer < std::min(job.tp, 2); ++peer) {
        const LinearProducts products = ProductsOf(job, layout.operators, i, peer);
        add(products.forward, products.next);
        add(products.input, products.previous);
        for (const kernels::MatmulShape& weight : products.weight) add(weight, Epilogue::kNone);
      }
    }
  }
  return all;
}

}  // namespace pp
