// The functions of cuBLASLt that lt_products.cc calls, without a GPU: they compute nothing, give
// the answers that a test wants, and remember what they were asked.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace pp {

struct FakeCublasLt {
  // Its answers. An algorithm's first word is its number, from 1.
  int algorithms = 3;  // of each product
  cublasStatus_t layout = CUBLAS_STATUS_SUCCESS, heuristic = CUBLAS_STATUS_SUCCESS,
                 check = CUBLAS_STATUS_SUCCESS;
  std::map<uint64_t, cublasStatus_t> run;                   // of products by an algorithm
  std::map<uint64_t, uint32_t> schemes;                     // of an algorithm; otherwise none
  std::set<cublasLtMatmulAlgoConfigAttributes_t> not_told;  // attributes of algorithms

  // What it was asked.
  int most = 0;  // algorithms
  std::map<cublasLtMatmulPreferenceAttributes_t, uint64_t> preference;
  std::vector<uint64_t> ran;  // by these algorithms
  // Multiprocessors that products may occupy, as last said; when it was asked for algorithms, and
  // when it computed.
  int32_t multiprocessors = 0, asked_of = -1, ran_on = -1;
  int alive = 0;  // what was created and not destroyed
};

// The one that the functions are.
FakeCublasLt& CublasLt();

}  // namespace pp
