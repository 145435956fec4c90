#include "runtime/model/linear.h"

namespace pp {

using kernels::MatmulNumbers;
using kernels::Operands;
using kernels::Update;

LinearProducts PrepareLinear(const StageOperator& placed, const LinearTerms& terms,
                             Kernels* kernels) {
  const Operator& op = placed.op;
  const int64_t n = terms.rows, in = op.in, out = op.out, stride = op.stride;
  const bool half = terms.dtype == Dtype::kBf16, turned = op.matrix == Matrix::kOutIn;
  const MatmulNumbers numbers = half ? MatmulNumbers::kBf16 : MatmulNumbers::kFp32;
  // Of peers whose outputs are added, the first one adds bias and stream.
  const bool adds = op.cut != Cut::kIn || terms.peer == 0;
  LinearProducts ids;
  ids.forward = kernels->Prepare(
      {.m = n,
       .n = out,
       .k = in,
       .operands = turned ? Operands::kNT : Operands::kNN,
       .bias = op.parameters.size() > 1 && adds ? kernels::WithBias::kYes : kernels::WithBias::kNo,
       .residual = placed.of(Keep::kStash).stream && adds ? kernels::WithResidual::kYes
                                                          : kernels::WithResidual::kNo,
       .ldc = stride,
       .numbers = numbers});
  ids.input = kernels->Prepare({.m = n,
                                .n = in,
                                .k = out,
                                .operands = turned ? Operands::kNN : Operands::kNT,
                                .lda = stride,
                                .numbers = numbers});
  for (const Update update : {Update::kSet, Update::kAdd}) {
    ids.weight[static_cast<int>(update)] =
        kernels->Prepare({.m = turned ? out : in,
                          .n = turned ? in : out,
                          .k = n,
                          .operands = Operands::kTN,
                          .update = update,
                          .lda = turned ? stride : in,
                          .ldb = turned ? in : stride,
                          .numbers = half ? MatmulNumbers::kBf16Sum : MatmulNumbers::kFp32});
  }
  return ids;
}

}  // namespace pp
