#include "worker/gpus/gpu_probe.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "worker/base/child_process.h"

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kDeadline{10};

// The declarations of nvml.h that are used; its ABI is stable within version 1.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned int gpu, memory;
};
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct NvmlFieldValue {
  unsigned int field, scope;
  long long timestamp, latency_us;
  int type, result;
  union {
    unsigned int number;
    unsigned long long wide;
  } value;
};
struct NvmlFabricInfo {  // nvmlGpuFabricInfo_t
  unsigned char cluster[16];
  int status;
  unsigned int clique;
  unsigned char state;
};
constexpr unsigned char kFabricCompleted = 3;
constexpr unsigned int kMaxLinks = 18;             // NVML_NVLINK_MAX_LINKS
constexpr unsigned int kNvGpu = 0, kNvSwitch = 2;  // nvmlIntNvLinkDeviceType_t
constexpr unsigned int kGpuSensor = 0;             // NVML_TEMPERATURE_GPU
constexpr unsigned int kGpuRecoveryAction = 230;   // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

class Nvml {
 public:
  // False when this machine has no NVIDIA driver.
  bool Open() {
    // Container platforms mount the driver in the second place.
    for (const char* name : {"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"}) {
      library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) return true;
    }
    return false;
  }

  template <typename... Args>
  void Call(const char* name, Args... args) {
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    const int code = function == nullptr ? -1 : function(args...);
    if (code != 0 && error_.empty()) {
      const auto describe =
          reinterpret_cast<const char* (*)(int)>(dlsym(library_, "nvmlErrorString"));
      error_ = fmt::format("{}: {}", name,
                           code < 0 || describe == nullptr ? "not in this driver" : describe(code));
    }
  }

  // As Call, for functions that some products do not support: true when it worked.
  template <typename... Args>
  bool Try(const char* name, Args... args) {
    error_.clear();
    Call(name, args...);
    return error_.empty();
  }

  // The GPUs that NVLink connects with this one.
  nlohmann::json ReadLinks(NvmlDevice device) {
    nlohmann::json links = {{"active", 0}, {"switch", false}, {"peers", nlohmann::json::array()}};
    int active = 0;
    for (unsigned int link = 0; link < kMaxLinks; ++link) {
      unsigned int on = 0;
      if (!Try("nvmlDeviceGetNvLinkState", device, link, &on)) break;
      if (on == 0) continue;
      ++active;
      unsigned int type = 0;
      const bool typed = Try("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, &type);
      if (typed && type == kNvSwitch) links["switch"] = true;
      NvmlPciInfo peer{};
      if (typed && type == kNvGpu &&
          Try("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, &peer)) {
        links["peers"].push_back(peer.bus_id);
      }
    }
    links["active"] = active;
    NvmlFabricInfo fabric{};
    if (Try("nvmlDeviceGetGpuFabricInfo", device, &fabric) && fabric.state == kFabricCompleted) {
      std::string cluster;
      for (const unsigned char byte : fabric.cluster) cluster += fmt::format("{:02x}", byte);
      if (cluster.find_first_not_of('0') != cluster.npos) {
        links["cluster"] = fmt::format("{}.{}", cluster, fabric.clique);
      }
    }
    return links;
  }

  std::string ReadDriver() {
    char version[80] = {};
    const std::string before = error_;
    Try("nvmlSystemGetDriverVersion", &version[0], static_cast<unsigned int>(sizeof(version)));
    error_ = before;
    return version;
  }

  // If one GPU cannot be read, the others still can: it becomes an entry with an error.
  nlohmann::json ReadDevice(unsigned int index) {
    nlohmann::json device = ReadReadable(index);
    if (!error_.empty()) device["error"] = error_;
    error_.clear();
    return device;
  }

  const std::string& error() const { return error_; }

 private:
  nlohmann::json ReadReadable(unsigned int index) {
    NvmlDevice device = nullptr;
    char name[96] = {};
    char uuid[96] = {};
    NvmlMemory memory{};
    NvmlUtilization utilization{};
    Call("nvmlDeviceGetHandleByIndex_v2", index, &device);
    if (!error_.empty()) return nlohmann::json::object();
    Call("nvmlDeviceGetName", device, &name[0], static_cast<unsigned int>(sizeof(name)));
    Call("nvmlDeviceGetUUID", device, &uuid[0], static_cast<unsigned int>(sizeof(uuid)));
    Call("nvmlDeviceGetMemoryInfo", device, &memory);
    const std::string before = error_;
    Call("nvmlDeviceGetUtilizationRates", device, &utilization);  // not available on every product
    unsigned int milliwatts = 0, celsius = 0;
    Call("nvmlDeviceGetPowerUsage", device, &milliwatts);
    Call("nvmlDeviceGetTemperature", device, kGpuSensor, &celsius);
    NvmlPciInfo pci{};
    Call("nvmlDeviceGetPciInfo_v3", device, &pci);
    NvmlFieldValue recovery{};
    recovery.field = kGpuRecoveryAction;
    Call("nvmlDeviceGetFieldValues", device, 1, &recovery);
    nlohmann::json links = ReadLinks(device);
    error_ = before;
    return {{"name", name},
            {"links", std::move(links)},
            {"uuid", uuid},
            {"pci", pci.bus_id},
            {"recovery", recovery.result == 0 ? recovery.value.number : 0},
            {"memory", memory.total},
            {"used", memory.used},
            {"utilization", utilization.gpu},
            {"milliwatts", milliwatts},
            {"celsius", celsius}};
  }

  void* library_ = nullptr;
  std::string error_;
};

}  // namespace

std::string GpuTypeOf(std::string_view product_name) {
  std::vector<std::string> words;
  for (size_t at = 0; at < product_name.size();) {
    const size_t end = std::min(product_name.find(' ', at), product_name.size());
    const std::string word(product_name.substr(at, end - at));
    if (!word.empty() && word != "NVIDIA" && word != "Tesla" && word != "GeForce" &&
        word != "Quadro") {
      words.push_back(word.substr(0, word.find('-')));
    }
    at = end + 1;
  }
  std::string type;
  for (const std::string& word : words) {
    type += word;
    // "RTX", "PRO" or "A" alone is the first half of a name.
    if (word.find_first_of("0123456789") != std::string::npos) break;
  }
  return type.empty() ? "GPU" : type;
}

std::string RecoveryText(int action) {
  switch (action) {
    case 0:
      return "";
    case 1:
      return "reset the GPU";
    case 2:
      return "restart the node";
    case 3:
      return "drain the GPUs that exchange data with it and reset them";
    case 4:
      return "drain the GPU and reset it";
    default:
      return fmt::format("recovery action {}", action);
  }
}

std::string ShortPci(std::string_view bus_id) {
  const size_t dot = bus_id.rfind('.');
  std::string text(bus_id.substr(0, dot));
  // NVML writes the domain with eight digits, the kernel with four.
  if (text.size() > 8 && text.starts_with("0000") && text[8] == ':') text.erase(0, 4);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

int GpuProbeMain() {
  Nvml nvml;
  nlohmann::json result = {{"gpus", nlohmann::json::array()}};
  if (nvml.Open()) {
    unsigned int count = 0;
    nvml.Call("nvmlInit_v2");
    if (nvml.error().empty()) result["driver"] = nvml.ReadDriver();
    if (nvml.error().empty()) nvml.Call("nvmlDeviceGetCount_v2", &count);
    for (unsigned int i = 0; i < count && nvml.error().empty(); ++i) {
      result["gpus"].push_back(nvml.ReadDevice(i));
    }
    if (!nvml.error().empty()) result["error"] = nvml.error();
  }
  printf("%s\n", DumpJson(result).c_str());
  return 0;
}

absl::StatusOr<std::vector<GpuReading>> ParseGpuProbe(std::string_view line) {
  const auto json = ParseJson(line);
  if (!json.is_object() || !json.contains("gpus")) {
    return Unavailable("the GPU probe printed: " + std::string(line.substr(0, 200)));
  }
  if (json.contains("error")) return Unavailable(json["error"].get<std::string>());
  std::vector<GpuReading> readings;
  for (const auto& gpu : json["gpus"]) {
    GpuReading reading;
    reading.name = gpu.value("name", "");
    reading.pci = ShortPci(gpu.value("pci", ""));
    reading.recovery = RecoveryText(gpu.value("recovery", 0));
    reading.uuid = gpu.value("uuid", "");
    reading.error = gpu.value("error", "");
    reading.memory_bytes = gpu.value("memory", int64_t{0});
    reading.memory_used_bytes = gpu.value("used", int64_t{0});
    reading.utilization_percent = gpu.value("utilization", 0);
    reading.power_watts = gpu.value("milliwatts", 0.0) / 1000;
    reading.temperature_celsius = gpu.value("celsius", 0);
    reading.driver = json.value("driver", "");
    if (const auto links = gpu.find("links"); links != gpu.end() && links->is_object()) {
      reading.active_links = links->value("active", 0);
      reading.links_to_switch = links->value("switch", false);
      reading.cluster = links->value("cluster", "");
      for (const auto& peer : links->value("peers", nlohmann::json::array())) {
        if (peer.is_string()) reading.link_peers.push_back(ShortPci(peer.get<std::string>()));
      }
    }
    readings.push_back(std::move(reading));
  }
  return readings;
}

absl::StatusOr<std::vector<GpuReading>> ProbeGpus(const std::string& program) {
  SFT_ASSIGN_OR_RETURN(const ChildResult result, RunChild({program, "probe-gpus"}, {}, kDeadline));
  if (!result.ok()) {
    return Unavailable(fmt::format("the GPU probe ended with exit code {}, signal {}: {}",
                                   result.exit_code, result.signal, result.output.substr(0, 200)));
  }
  return ParseGpuProbe(result.output);
}

}  // namespace sft::worker
