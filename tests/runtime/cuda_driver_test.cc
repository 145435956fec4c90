// CUDA's driver (cuda_driver.h) over a fake of CUDA's runtime (fake_cudart.h), with the toolkit's
// headers: which GPUs it touches. A context on a GPU that no rank of this process computes on takes
// some hundred MB of another rank's memory.
#include "runtime/device/cuda/cuda_driver.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/workspace.h"
#include "tests/fake_cudart.h"

namespace pp {
namespace {

// What a rank does with its GPU: on its compute thread, its communication thread, and the thread
// that looks for events.
void UseAll(int gpu, UsedGpus* used) {
  used->Add(gpu);
  const auto driver = MakeCudaDriver(gpu);
  const auto stream = driver->MakeStream();
  const auto event = driver->MakeEvent();
  std::byte* memory = *driver->Allocate(2 * kernels::cuda::kProductBytes);
  driver->LoadKernels();
  driver->BeginProducts(memory);
  std::thread([&] {
    const auto second = driver->MakeStream(CudaDriver::Priority::kHigh);
    driver->WaitFor(second, event);
    driver->Copy(memory, *driver->TakePinned(8), 8, second);
  }).join();
  std::thread([&] { driver->Reached(event); }).join();
  driver->Record(event, stream);
  driver->Fill(memory, 0, 4, stream);
  CHECK(driver->status().ok());
}

TEST_CASE("a process touches the GPUs of its own ranks and no others") {
  Cudart() = {};
  UsedGpus used;
  std::thread([&] { UseAll(2, &used); }).join();
  CHECK(Cudart().contexts == std::set<int>{2});
  CHECK(Cudart().peers.empty());
  std::thread([&] { UseAll(3, &used); }).join();
  CHECK(Cudart().contexts == std::set<int>{2, 3});
  CHECK(Cudart().peers == std::set<std::pair<int, int>>{{2, 3}, {3, 2}});
}

TEST_CASE("a thread that has connected two GPUs goes on with its own") {
  Cudart() = {};
  UsedGpus used;
  std::thread([&] {
    UseAll(1, &used);
    UseAll(0, &used);
    Cudart().contexts.clear();
    used.Add(3);  // leaves the thread at another GPU
    Cudart().contexts.clear();
    UseAll(0, &used);
    CHECK(Cudart().contexts == std::set<int>{0});
  }).join();
}

}  // namespace
}  // namespace pp
