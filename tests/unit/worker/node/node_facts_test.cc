#include "worker/node/node_facts.h"

#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::worker {
namespace {

GpuReading Gpu(const std::string& pci, int links, bool to_switch,
               std::vector<std::string> peers = {}) {
  GpuReading gpu;
  gpu.pci = pci;
  gpu.driver = "580.82.07";
  gpu.active_links = links;
  gpu.links_to_switch = to_switch;
  gpu.link_peers = std::move(peers);
  return gpu;
}

TEST(NodeFactsTest, GpusBehindSwitchesAreOneDomain) {
  const v1::NodeFacts facts =
      MakeFacts({Gpu("a", 18, true), Gpu("b", 18, true), Gpu("c", 18, true)}, {});
  EXPECT_EQ(facts.interconnect(), "NVLink: 3 GPUs, 18 links each, all connected");
  EXPECT_EQ(facts.driver_version(), "580.82.07");
  EXPECT_EQ(facts.links(0).domain(), facts.links(2).domain());
  EXPECT_FALSE(facts.links(0).domain().empty());
}

TEST(NodeFactsTest, BridgedPairsAreDomainsOfTheirOwn) {
  const v1::NodeFacts facts = MakeFacts({Gpu("a", 4, false, {"b"}), Gpu("b", 4, false, {"a"}),
                                         Gpu("c", 4, false, {"d"}), Gpu("d", 4, false, {"c"})},
                                        {});
  EXPECT_EQ(facts.interconnect(), "NVLink: 2 groups among 4 GPUs");
  EXPECT_EQ(facts.links(0).domain(), facts.links(1).domain());
  EXPECT_EQ(facts.links(2).domain(), facts.links(3).domain());
  EXPECT_NE(facts.links(0).domain(), facts.links(2).domain());
}

TEST(NodeFactsTest, WithoutLinksItIsPcieAndOneGpuHasNoInterconnect) {
  EXPECT_EQ(MakeFacts({Gpu("a", 0, false), Gpu("b", 0, false)}, {}).interconnect(), "PCIe");
  EXPECT_EQ(MakeFacts({Gpu("a", 0, false)}, {}).interconnect(), "");
  EXPECT_EQ(MakeFacts({}, {"mlx5_0"}).networks(0), "mlx5_0");
}

TEST(NodeFactsTest, AFabricOverNodesGivesTheDomainItsName) {
  GpuReading gpu = Gpu("a", 18, true);
  gpu.cluster = "c0ffee.1";
  EXPECT_EQ(MakeFacts({gpu, gpu}, {}).links(1).domain(), "c0ffee.1");
}

TEST(NodeFactsTest, ACopyOfAFolderLiesInAnotherPlaceAndARestartInTheSame) {
  const std::string root = *io::MakeTempDir("place-");
  for (const char* name : {"/a", "/b"}) {
    ASSERT_TRUE(io::MakeDirs(root + name).ok());
    ASSERT_TRUE(io::WriteFileAtomic(root + name + "/id", "one").ok());
  }
  const auto place = [&](const std::string& dir, const std::string& machine) {
    EXPECT_TRUE(io::WriteFileAtomic(root + "/machine-id", machine + "\n").ok());
    v1::DataDirPlace found = PlaceOf(dir, root + "/machine-id");
    EXPECT_EQ(found.path(), dir);
    EXPECT_GT(found.inode(), 0u);
    found.clear_path();
    return found.SerializeAsString();
  };
  EXPECT_EQ(place(root + "/a", "m1"), place(root + "/a", "m1"));
  EXPECT_NE(place(root + "/a", "m1"), place(root + "/b", "m1"));
  EXPECT_NE(place(root + "/a", "m1"), place(root + "/a", "m2"));
  EXPECT_EQ(PlaceOf(root, root + "/machine-id").machine().find("m2"), std::string::npos);
  ASSERT_TRUE(io::RemoveAll(root).ok());
}

TEST(NodeFactsTest, NetworksAreThePortsOfRdmaDevices) {
  const std::string root = *io::MakeTempDir("ib-");
  const std::string port = root + "/mlx5_0/ports/1";
  ASSERT_TRUE(io::MakeDirs(port).ok());
  ASSERT_TRUE(io::WriteFileAtomic(port + "/state", "4: ACTIVE\n").ok());
  ASSERT_TRUE(io::WriteFileAtomic(port + "/rate", "400 Gb/sec (4X NDR)\n").ok());
  ASSERT_TRUE(io::WriteFileAtomic(port + "/link_layer", "InfiniBand\n").ok());
  EXPECT_EQ(ListNetworks(root),
            std::vector<std::string>{"mlx5_0: InfiniBand 400 Gb/sec (4X NDR), ACTIVE"});
  ASSERT_TRUE(io::RemoveAll(root).ok());
  EXPECT_TRUE(ListNetworks(root).empty());
}

}  // namespace
}  // namespace sft::worker
