// Products by cuBLASLt (lt_products.h), where it refuses shapes and questions: over a fake of the
// library (fake_cublaslt.h), with the toolkit's headers.
#include "runtime/device/cuda/lt_products.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/workspace.h"
#include "tests/fake_cublaslt.h"

namespace pp {
namespace {

using kernels::MatmulArgs;
using kernels::MatmulNumbers;
using kernels::MatmulShape;

constexpr MatmulShape kShape = {.m = 64, .n = 128, .k = 32, .numbers = MatmulNumbers::kBf16};

GemmAlgorithm Algorithm(uint64_t number) { return {.words = {number}}; }

// One with a new fake.
struct Products {
  explicit Products(const FakeCublasLt& fake = {}, const CudaExperiments& experiments = {})
      : products((CublasLt() = fake, experiments)) {
    REQUIRE(products.Begin(nullptr).ok());
  }
  PreparedProduct Prepare(const MatmulShape& shape = kShape) {
    const Result<PreparedProduct> prepared = products.Prepare(shape, nullptr, {}, nullptr);
    REQUIRE(prepared.ok());
    return *prepared;
  }
  LtProducts products;
};

TEST_CASE("the first choice computes a product, and says which it is") {
  Products by;
  const PreparedProduct product = by.Prepare();
  CHECK(product.id == 0);
  CHECK(product.text == "algorithm 1, tile 1, stages 1, split-K 1, reduction 0, workspace 4096");
  CHECK(product.note.empty());
  CHECK(CublasLt().ran == std::vector<uint64_t>{1});  // nothing is loaded later
  CHECK(by.Prepare().id == 0);
  CHECK(CublasLt().ran.size() == 1);
  REQUIRE(by.products.Multiply(0, {}, nullptr).ok());
  CHECK(CublasLt().ran == std::vector<uint64_t>{1, 1});
  MatmulShape other = kShape;
  other.n = 64;
  CHECK(by.Prepare(other).id == 1);
}

TEST_CASE("an algorithm that does not tell its reduction is used, and noted") {
  const FakeCublasLt fake = {.not_told = {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME}};
  Products by(fake);
  const PreparedProduct product = by.Prepare();
  CHECK(product.id == 0);
  CHECK(product.note ==
        "cuBLASLt does not tell how it adds up 'nn 64x128x32 32,128,128 bf16 set - - -' "
        "(algorithm 1, tile 1, stages 1, split-K 1, reduction ?, workspace 4096)");
  CHECK(by.products.Algorithms(kShape, 16).size() == 3);
  const GemmAlgorithm second = Algorithm(2);
  CHECK(by.products.Prepare(kShape, &second, {}, nullptr)->id == 1);
  CHECK(Products({.not_told = {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_SPLITK_NUM}})
            .Prepare()
            .text == "algorithm ?, tile 1, stages 1, split-K ?, reduction 0, workspace 4096");
}

TEST_CASE("an algorithm that adds up in another order, or in two bytes, is not used") {
  const FakeCublasLt fake = {.schemes = {{1, CUBLASLT_REDUCTION_SCHEME_INPLACE},
                                         {2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE},
                                         {3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}}};
  Products by(fake);
  by.Prepare();
  CHECK(CublasLt().ran == std::vector<uint64_t>{3});
  CHECK(by.products.Algorithms(kShape, 16) == std::vector{Algorithm(3)});
  const GemmAlgorithm in_place = Algorithm(1);
  CHECK(by.products.Prepare(kShape, &in_place, {}, nullptr).status().message() ==
        "--gemms: cuBLASLt does not take the algorithm of 'nn 64x128x32 32,128,128 bf16 set - - "
        "-' (piperun --tune-gemms)");
  CHECK(Products(fake, {.cut_sums = CutSums::kNever}).Prepare().id == -1);
  CHECK(Products(fake, {.cut_sums = CutSums::kAnyOrder}).products.Algorithms(kShape, 16).size() ==
        3);
}

TEST_CASE("what is refused, wherever, is no error") {
  constexpr char kAsked[] = ", asked for workspace 33554432, reductions 2, alignments 16 16 16 16";
  for (const cublasStatus_t status : {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE})
    for (const FakeCublasLt& fake :
         {FakeCublasLt{.layout = status}, FakeCublasLt{.heuristic = status},
          FakeCublasLt{.run = {{1, status}, {2, status}, {3, status}}}}) {
      Products by(fake);
      const PreparedProduct product = by.Prepare();
      CHECK(product.id == -1);
      CHECK(product.text == cublasLtGetStatusString(status) + std::string(kAsked));
      CHECK(CublasLt().ran.empty());
      CublasLt() = {.alive = CublasLt().alive};  // the answer stays
      CHECK(by.Prepare().id == -1);
    }
  CHECK(Products({.algorithms = 0}).Prepare().text == std::string("not supported") + kAsked);
  CHECK(Products({.layout = CUBLAS_STATUS_INVALID_VALUE}).products.Algorithms(kShape, 8).empty());
}

TEST_CASE("a choice that is refused when it runs is followed by the next one") {
  Products by({.run = {{1, CUBLAS_STATUS_NOT_SUPPORTED}}});
  CHECK(by.Prepare().text ==
        "algorithm 2, tile 2, stages 2, split-K 2, reduction 0, workspace 4096");
  REQUIRE(by.products.Multiply(0, {}, nullptr).ok());
  CHECK(CublasLt().ran == std::vector<uint64_t>{2, 2});
}

TEST_CASE("a failure of the library is an error that names the product") {
  for (const FakeCublasLt& fake : {FakeCublasLt{.heuristic = CUBLAS_STATUS_ALLOC_FAILED},
                                   FakeCublasLt{.run = {{1, CUBLAS_STATUS_EXECUTION_FAILED}}}}) {
    Products by(fake);
    CHECK(by.products.Prepare(kShape, nullptr, {}, nullptr).status().message() ==
          "cuBLASLt: product 'nn 64x128x32 32,128,128 bf16 set - - -': failed, asked for workspace "
          "33554432, reductions 2, alignments 16 16 16 16");
  }
  Products by;
  by.Prepare();
  CublasLt().run[1] = CUBLAS_STATUS_INVALID_VALUE;  // although it was computed before
  CHECK(by.products.Multiply(0, {}, nullptr).message() ==
        "product 'nn 64x128x32 32,128,128 bf16 set - - -' (algorithm 1, tile 1, stages 1, split-K "
        "1, reduction 0, workspace 4096): cuBLASLt: invalid value");
}

TEST_CASE("what cuBLASLt is asked for") {
  const auto preference = [] {
    std::vector<uint64_t> values;
    for (const auto& [attribute, value] : CublasLt().preference) values.push_back(value);
    return values;
  };
  const uint64_t workspace = kernels::cuda::kProductBytes;
  const auto ask = [&](const MatmulShape& shape, const CudaExperiments& experiments) {
    Products(FakeCublasLt(), experiments).Prepare(shape);
    return preference();
  };
  using Values = std::vector<uint64_t>;
  CHECK(ask(kShape, {}) == Values{workspace, 2, 16, 16, 16, 16});
  CHECK(CublasLt().most == 8);
  CHECK(ask(kShape, {.cut_sums = CutSums::kNever}) == Values{workspace, 0, 16, 16, 16, 16});
  CHECK(ask(kShape, {.cut_sums = CutSums::kAnyOrder}) == Values{workspace, 7, 16, 16, 16, 16});
  CHECK(ask(kShape, {.alignment = 64}) == Values{workspace, 2, 64, 64, 64, 64});
  // Its A is our B, and the other way round.
  MatmulShape odd = kShape;
  odd.lda = 33, odd.ldb = 130, odd.ldc = 132;
  CHECK(ask(odd, {.alignment = 64}) == Values{workspace, 2, 4, 2, 8, 8});
}

TEST_CASE("all that it creates is destroyed") {
  {
    Products by;
    by.Prepare();
    CublasLt().layout = CUBLAS_STATUS_INVALID_VALUE;
    CHECK(by.Prepare({.m = 1, .n = 1, .k = 1}).id == -1);
    CHECK(CublasLt().alive > 0);
  }
  CHECK(CublasLt().alive == 0);
}

TEST_CASE("products leave others room, with the bits that they have without them") {
  CublasLt() = {};
  LtProducts alone({}), beside({}, 124);
  for (LtProducts* products : {&alone, &beside}) {
    const int32_t most = products == &alone ? 0 : 124;
    REQUIRE(products->Begin(nullptr).ok());
    CHECK(products->Prepare(kShape, nullptr, {}, nullptr)->id == 0);
    CHECK(CublasLt().asked_of == 0);  // the choice of an algorithm does not depend on it
    CHECK(CublasLt().ran_on == most);
    const GemmAlgorithm second = Algorithm(2);  // of a file
    MatmulShape other = kShape;
    other.n = 64;
    CHECK(products->Prepare(other, &second, {}, nullptr)->id == 1);
    CHECK(CublasLt().ran_on == most);
  }
}

}  // namespace
}  // namespace pp
