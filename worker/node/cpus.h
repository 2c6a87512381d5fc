#pragma once

#include <string>

namespace sft::worker {

// CPUs that this process may use at once: those of its affinity, and no more than the quota of each
// control group it is in (rounded up; version 1 and 2). At least 1. `root`: where /proc and /sys
// are, in tests.
int UsableCpus(const std::string& root = "");

// Who shares a node's CPUs with a rank.
struct CpuShare {
  int cpus = 1;          // UsableCpus, or --cpus
  bool given = false;    // --cpus: they are this worker's alone
  bool on_gpu = false;   // the rank computes on a GPU
  int machine_gpus = 0;  // all GPUs of the machine, offered by this worker or not
  int slots = 1;         // slots like the rank's that this worker offers
};

// CPU threads of the rank: a rank on a GPU gets that GPU's part among the machine's GPUs, as others
// may use the rest; any other its part among the worker's slots. At least 1. Pure.
int ThreadsOf(const CpuShare& share);

}  // namespace sft::worker
