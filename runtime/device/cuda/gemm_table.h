// Which of cuBLASLt's algorithms computes each product: chosen once, by timing (gemm_tuner.h), and
// kept in a file, so that all ranks and all runs use the same algorithms, and so get the same bits.
//
//   piperun gemms 1
//   gpu NVIDIA H200, 132 multiprocessors, sm_90
//   cublaslt 130100
//   nn 16384x3072x768 768,3072,3072 bf16 set bias - gelu 41.3 0000...
//   checksum 9f86d081884c7d65
//
// One line per product: operands, m x n x k, lda, ldb and ldc, numbers, update, bias, residual and
// epilogue (kernels/matmul.h), microseconds, and the algorithm, whose bits are cuBLASLt's own. It
// guarantees to understand them only in the same version; a checksum (XXH3 of all lines before it)
// keeps other bits away.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"
#include "schema/base/status.h"

namespace pp {

struct GemmAlgorithm {
  std::array<uint64_t, 8> words = {};

  bool operator==(const GemmAlgorithm&) const = default;
};

// The machine that algorithms are chosen for.
struct GemmMachine {
  std::string gpu;
  int64_t library = 0;  // cuBLASLt's version

  bool operator==(const GemmMachine&) const = default;
};

// As in the file, up to the epilogue.
std::string ToText(const kernels::MatmulShape& shape);

class GemmTable {
 public:
  explicit GemmTable(GemmMachine machine) : machine_(std::move(machine)) {}

  // Errors name `path`. Failed: it cannot be read. Invalid: a line of it is wrong.
  static Result<GemmTable> Open(const std::string& path);
  static Result<GemmTable> Parse(std::string_view text);
  std::string Print() const;

  // REQUIRES: there is none yet for the shape.
  void Add(const kernels::MatmulShape& shape, const GemmAlgorithm& algorithm, double microseconds);
  // Null: none.
  const GemmAlgorithm* Find(const kernels::MatmulShape& shape) const;
  // How many of these it has no algorithm for, with the epilogue or without it.
  int Lacks(const std::vector<kernels::MatmulShape>& shapes) const;

  // Invalid: it was chosen for another machine.
  Status CheckMachine(const GemmMachine& machine) const;

 private:
  struct Row {
    kernels::MatmulShape shape;
    GemmAlgorithm algorithm;
    double microseconds = 0;
  };
  static Result<Row> ParseRow(const std::string& line);

  std::string path_;  // of the file it comes from
  GemmMachine machine_;
  std::vector<Row> rows_;
};

struct TunedGemms {
  GemmTable table;
  // For the user, one line per product: how long the fastest algorithm takes, and the library's own
  // first choice.
  std::vector<std::string> lines;
};

}  // namespace pp
