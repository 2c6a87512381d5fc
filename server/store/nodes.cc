#include "server/store/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server::store {
namespace {

#define SFT_NODE_COLUMNS                                                                         \
  "name, state, reason, hostname, address, incarnation, version, simulated, has_shared_folder, " \
  "cpus, memory_bytes, last_seen_us, data_dir_id, protocol"

NodeRecord ReadNode(const Statement& row) {
  NodeRecord node;
  node.name = row.Text(0);
  node.state = static_cast<NodeState>(row.Int(1));
  node.reason = row.Text(2);
  node.hostname = row.Text(3);
  node.address = row.Text(4);
  node.incarnation = row.Text(5);
  node.version = row.Text(6);
  node.simulated = row.Bool(7);
  node.has_shared_folder = row.Bool(8);
  node.cpus = static_cast<int>(row.Int(9));
  node.memory_bytes = row.Int(10);
  node.last_seen_us = row.Int(11);
  node.data_dir_id = row.Text(12);
  node.protocol = static_cast<int>(row.Int(13));
  return node;
}

SlotRecord ReadSlot(const Statement& row, const std::string& node, const Holders& holders) {
  SlotRecord slot{node,        static_cast<int>(row.Int(0)),
                  row.Text(1), row.Text(2),
                  row.Text(3), row.Int(4),
                  row.Bool(5), row.Text(6),
                  ""};
  const auto holder = holders.find({node, slot.index});
  if (holder != holders.end()) slot.job_id = holder->second;
  return slot;
}

absl::Status ReadSlots(Database& db, NodeRecord& node, const Holders& holders) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT slot, gpu_type, product_name, uuid, memory_bytes, healthy, "
                 "health_reason FROM gpus WHERE node = ? AND present = 1 ORDER BY "
                 "slot"));
  list.Bind(node.name);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return absl::OkStatus();
    node.slots.push_back(ReadSlot(list, node.name, holders));
  }
}

absl::StatusOr<std::vector<ModelRecord>> ReadModels(Statement& row) {
  std::vector<ModelRecord> models;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool more, row.Step());
    if (!more) return models;
    models.push_back(
        {row.Text(0), row.Text(1), row.Text(2), row.Text(3), row.Int(4), row.Text(5), row.Text(6)});
  }
}

absl::Status AddVariants(Database& db, const std::vector<SlotRecord>& slots) {
  std::map<std::string, int> count;
  for (const SlotRecord& slot : slots) ++count[slot.gpu_type];
  for (const auto& [type, most] : count) {
    for (int n = 1; n <= most; ++n) {
      SFT_ASSIGN_OR_RETURN(Statement add,
                           db.Prepare("INSERT INTO variants (name, gpu_type, "
                                      "gpus_per_node) VALUES (?, ?, ?) ON CONFLICT DO "
                                      "NOTHING"));
      SFT_RETURN_IF_ERROR(add.Bind(fmt::format("{}-{}x", type, n)).Bind(type).Bind(n).Run());
    }
  }
  return absl::OkStatus();
}

// Values of nodes.removed. Stored: never renumber.
constexpr int kThere = 0, kRemoved = 1, kLeft = 2;

// With slots and their holders, by name; `removed` from `least` to `most`.
absl::StatusOr<std::vector<NodeRecord>> Nodes(Database& db, int least, int most) {
  SFT_ASSIGN_OR_RETURN(const Holders holders, LiveHolders(db));
  std::vector<NodeRecord> nodes;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement list,
        db.Prepare("SELECT " SFT_NODE_COLUMNS
                   " FROM nodes WHERE removed BETWEEN ? AND ? ORDER BY name LIMIT 20000"));
    list.Bind(least).Bind(most);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      nodes.push_back(ReadNode(list));
    }
  }
  SFT_ASSIGN_OR_RETURN(
      Statement slots,
      db.Prepare("SELECT slot, gpu_type, product_name, uuid, memory_bytes, healthy, "
                 "health_reason, node FROM gpus WHERE present = 1 AND node IN (SELECT name FROM "
                 "nodes WHERE removed BETWEEN ? AND ?) ORDER BY node, slot LIMIT 400000"));
  slots.Bind(least).Bind(most);
  auto node = nodes.begin();
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, slots.Step());
    if (!row) return nodes;
    const std::string name = slots.Text(7);
    while (node != nodes.end() && node->name < name) ++node;
    if (node != nodes.end() && node->name == name) {
      node->slots.push_back(ReadSlot(slots, name, holders));
    }
  }
}

}  // namespace

absl::Status PutNode(Database& db, const NodeRecord& node) {
  db.NoteFleetChange();
  SFT_ASSIGN_OR_RETURN(
      Statement put,
      db.Prepare(
          "INSERT INTO nodes (" SFT_NODE_COLUMNS
          ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
          "state = excluded.state, reason = excluded.reason, hostname = excluded.hostname, address "
          "= "
          "excluded.address, incarnation = excluded.incarnation, version = excluded.version, "
          "simulated = excluded.simulated, has_shared_folder = excluded.has_shared_folder, cpus "
          "= excluded.cpus, memory_bytes = excluded.memory_bytes, last_seen_us = "
          "excluded.last_seen_us, data_dir_id = excluded.data_dir_id, protocol = "
          "excluded.protocol, removed = 0"));
  put.Bind(node.name).Bind(static_cast<int>(node.state)).Bind(node.reason).Bind(node.hostname);
  put.Bind(node.address).Bind(node.incarnation).Bind(node.version).Bind(node.simulated);
  put.Bind(node.has_shared_folder).Bind(node.cpus).Bind(node.memory_bytes).Bind(node.last_seen_us);
  put.Bind(node.data_dir_id).Bind(node.protocol);
  SFT_RETURN_IF_ERROR(put.Run());
  return PutSlots(db, node.name, node.slots);
}

absl::Status PutSlots(Database& db, const std::string& node, const std::vector<SlotRecord>& slots) {
  db.NoteFleetChange();
  {
    SFT_ASSIGN_OR_RETURN(Statement hide, db.Prepare("UPDATE gpus SET present = 0 WHERE node = ?"));
    SFT_RETURN_IF_ERROR(hide.Bind(node).Run());
  }
  for (const SlotRecord& slot : slots) {
    SFT_ASSIGN_OR_RETURN(
        Statement put,
        db.Prepare(
            "INSERT INTO gpus (node, slot, gpu_type, product_name, uuid, memory_bytes, healthy, "
            "health_reason, present) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (node, slot) "
            "DO UPDATE SET gpu_type = excluded.gpu_type, product_name = excluded.product_name, "
            "uuid = excluded.uuid, memory_bytes = excluded.memory_bytes, healthy = "
            "excluded.healthy, health_reason = excluded.health_reason, present = 1"));
    put.Bind(node).Bind(slot.index).Bind(slot.gpu_type).Bind(slot.product_name).Bind(slot.uuid);
    put.Bind(slot.memory_bytes).Bind(slot.healthy).Bind(slot.health_reason);
    SFT_RETURN_IF_ERROR(put.Run());
  }
  return AddVariants(db, slots);
}

absl::Status PutModels(Database& db, const std::string& node,
                       const std::vector<ModelRecord>& models) {
  db.NoteFleetChange();
  {
    SFT_ASSIGN_OR_RETURN(Statement clear, db.Prepare("DELETE FROM models WHERE node = ?"));
    SFT_RETURN_IF_ERROR(clear.Bind(node).Run());
  }
  for (const ModelRecord& model : models) {
    SFT_ASSIGN_OR_RETURN(
        Statement put,
        db.Prepare("INSERT OR REPLACE INTO models (node, id, path, config_json, bytes, "
                   "hash, problem) VALUES (?, ?, ?, ?, ?, ?, ?)"));
    put.Bind(node).Bind(model.id).Bind(model.path).Bind(model.config_json).Bind(model.bytes);
    SFT_RETURN_IF_ERROR(put.Bind(model.hash).Bind(model.problem).Run());
  }
  return absl::OkStatus();
}

absl::Status SetNodeState(Database& db, const std::string& node, NodeState state,
                          const std::string& reason, int64_t last_seen_us) {
  SFT_ASSIGN_OR_RETURN(Statement update, db.Prepare("UPDATE nodes SET state = ?, reason = ?, "
                                                    "last_seen_us = ? WHERE name = ?"));
  return update.Bind(static_cast<int>(state)).Bind(reason).Bind(last_seen_us).Bind(node).Run();
}

absl::Status RemoveNode(Database& db, const std::string& node) {
  db.NoteFleetChange();
  for (const char* sql :
       {"UPDATE nodes SET removed = 1 WHERE name = ?", "DELETE FROM models WHERE node = ?",
        "DELETE FROM node_holds WHERE node = ?", "DELETE FROM node_faults WHERE node = ?"}) {
    SFT_ASSIGN_OR_RETURN(Statement change, db.Prepare(sql));
    SFT_RETURN_IF_ERROR(change.Bind(node).Run());
  }
  return absl::OkStatus();
}

absl::Status LetNodeGo(Database& db, const std::string& node, int64_t last_seen_us) {
  db.NoteFleetChange();
  {
    SFT_ASSIGN_OR_RETURN(
        Statement leave,
        db.Prepare("UPDATE nodes SET removed = ?, last_seen_us = max(last_seen_us, "
                   "?) WHERE name = ?"));
    SFT_RETURN_IF_ERROR(leave.Bind(kLeft).Bind(last_seen_us).Bind(node).Run());
  }
  for (const char* sql :
       {"DELETE FROM node_faults WHERE node = ?1",
        // Earlier ones that have no more of any type than this one.
        "UPDATE nodes SET removed = 1 WHERE removed = 2 AND name != ?1 AND NOT EXISTS (SELECT 1 "
        "FROM gpus g WHERE g.node = nodes.name AND g.present = 1 GROUP BY g.gpu_type HAVING "
        "COUNT(*) > (SELECT COUNT(*) FROM gpus h WHERE h.node = ?1 AND h.present = 1 AND "
        "h.gpu_type = g.gpu_type))"}) {
    SFT_ASSIGN_OR_RETURN(Statement change, db.Prepare(sql));
    SFT_RETURN_IF_ERROR(change.Bind(node).Run());
  }
  return db.Execute("DELETE FROM models WHERE node IN (SELECT name FROM nodes WHERE removed = 1)");
}

absl::StatusOr<std::vector<std::string>> DropOldNodes(Database& db, int64_t before_us, int limit) {
  {
    SFT_ASSIGN_OR_RETURN(Statement drop,
                         db.Prepare("DELETE FROM node_holds WHERE node IN (SELECT name FROM nodes "
                                    "WHERE removed != 0 AND last_seen_us < ?)"));
    SFT_RETURN_IF_ERROR(drop.Bind(before_us).Run());
  }
  std::vector<std::string> names;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement list,
        db.Prepare("SELECT name FROM nodes WHERE removed = 1 AND last_seen_us < ? AND NOT EXISTS "
                   "(SELECT 1 FROM attempt_nodes a WHERE a.node = name) AND NOT EXISTS (SELECT 1 "
                   "FROM allocations l WHERE l.node = name) ORDER BY name LIMIT ?"));
    list.Bind(before_us).Bind(limit);
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      names.push_back(list.Text(0));
    }
  }
  for (const std::string& name : names) {
    for (const char* sql :
         {"DELETE FROM models WHERE node = ?", "DELETE FROM node_holds WHERE node = ?",
          "DELETE FROM node_faults WHERE node = ?", "DELETE FROM node_facts WHERE node = ?",
          "DELETE FROM gpus WHERE node = ?", "DELETE FROM nodes WHERE name = ?"}) {
      SFT_ASSIGN_OR_RETURN(Statement drop, db.Prepare(sql));
      SFT_RETURN_IF_ERROR(drop.Bind(name).Run());
    }
  }
  return names;
}

absl::StatusOr<std::vector<NodeRecord>> ListNodes(Database& db, const std::string& after,
                                                  int limit) {
  SFT_ASSIGN_OR_RETURN(const Holders holders, LiveHolders(db));
  std::vector<NodeRecord> nodes;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement list,
        db.Prepare("SELECT " SFT_NODE_COLUMNS
                   " FROM nodes WHERE name > ? AND removed = 0 ORDER BY name LIMIT ?"));
    list.Bind(after).Bind(std::clamp(limit, 1, kMaxPage));
    while (true) {
      SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
      if (!row) break;
      nodes.push_back(ReadNode(list));
    }
  }
  for (NodeRecord& node : nodes) SFT_RETURN_IF_ERROR(ReadSlots(db, node, holders));
  return nodes;
}

absl::StatusOr<std::vector<NodeRecord>> AllNodes(Database& db) { return Nodes(db, kThere, kThere); }

absl::StatusOr<std::vector<NodeRecord>> RemovedNodes(Database& db) {
  return Nodes(db, kRemoved, kLeft);
}

absl::StatusOr<std::vector<NodeRecord>> LeftNodes(Database& db) { return Nodes(db, kLeft, kLeft); }

absl::StatusOr<bool> HasNode(Database& db, const std::string& name) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT 1 FROM nodes WHERE name = ? AND removed = 0"));
  return find.Bind(name).Step();
}

absl::StatusOr<NodeRecord> GetNode(Database& db, const std::string& name) {
  NodeRecord node;
  {
    SFT_ASSIGN_OR_RETURN(Statement get,
                         db.Prepare("SELECT " SFT_NODE_COLUMNS " FROM nodes WHERE name = ?"));
    SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(name).Step());
    if (!row) return NotFound(fmt::format("no node \"{}\": `sftctl nodes` shows them", name));
    node = ReadNode(get);
  }
  SFT_ASSIGN_OR_RETURN(const Holders holders, LiveHolders(db, name));
  SFT_RETURN_IF_ERROR(ReadSlots(db, node, holders));
  return node;
}

absl::StatusOr<std::vector<VariantRecord>> ListVariants(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT name, gpu_type, gpus_per_node FROM variants ORDER BY "
                                  "gpu_type, gpus_per_node LIMIT 1000"));
  std::vector<VariantRecord> variants;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return variants;
    variants.push_back({list.Text(0), list.Text(1), static_cast<int>(list.Int(2))});
  }
}

absl::StatusOr<std::vector<ModelRecord>> ListModels(Database& db, int offset, int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT node, id, path, config_json, bytes, hash, problem FROM models "
                 "WHERE node IN (SELECT name FROM nodes WHERE removed = 0) "
                 "ORDER BY id, node, path LIMIT ? OFFSET ?"));
  return ReadModels(list.Bind(std::clamp(limit, 1, kMaxPage)).Bind(offset));
}

absl::StatusOr<std::vector<ModelRecord>> SnapshotsOf(Database& db, const std::string& id,
                                                     const std::string& commit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT node, id, path, config_json, bytes, hash, problem FROM models "
                 "WHERE id = ?1 AND substr(path, -length(?2)) = ?2 ORDER BY problem, node"));
  return ReadModels(list.Bind(id).Bind("/snapshots/" + commit));
}

absl::StatusOr<std::optional<ModelRecord>> FindSnapshot(Database& db, const std::string& id,
                                                        const std::string& commit) {
  SFT_ASSIGN_OR_RETURN(std::vector<ModelRecord> found, SnapshotsOf(db, id, commit));
  if (found.empty()) return std::optional<ModelRecord>();
  return std::optional<ModelRecord>(std::move(found.front()));
}

absl::StatusOr<std::vector<ModelRecord>> CopiesOf(Database& db, const std::string& model,
                                                  int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT node, id, path, config_json, bytes, hash, problem FROM models "
                 "WHERE (id = ?1 OR path = ?1) ORDER BY problem, node LIMIT ?2"));
  return ReadModels(list.Bind(model).Bind(limit));
}

absl::StatusOr<std::optional<ModelRecord>> FindModel(Database& db, const std::string& model) {
  SFT_ASSIGN_OR_RETURN(std::vector<ModelRecord> found, CopiesOf(db, model, 1));
  if (found.empty()) return std::optional<ModelRecord>();
  return std::optional<ModelRecord>(std::move(found.front()));
}

}  // namespace sft::server::store
