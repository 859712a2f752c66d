"""The records of a KRaft log, version by version, as Kafka 4.3.1 writes them.

``schema`` says how these tables are read.
"""

from __future__ import annotations

# Control records: what the raft layer itself writes.
CONTROL = """
KRaftVersionRecord 0 0+
 version int16 0+
 kRaftVersion int16 0+
LeaderChangeMessage 0-1 0+
 version int16 0+
 leaderId int32 0+
 voters []Voter 0+
  voterId int32 0+
  voterDirectoryId uuid 1+
 grantingVoters []Voter 0+
SnapshotFooterRecord 0 0+
 version int16 0+
SnapshotHeaderRecord 0 0+
 version int16 0+
 lastContainedLogTimestamp int64 0+
VotersRecord 0 0+
 version int16 0+
 voters []Voter 0+
  voterId int32 0+
  voterDirectoryId uuid 0+
  endpoints []Endpoint 0+
   name string 0+
   host string 0+
   port uint16 0+
  kRaftVersionFeature KRaftVersionFeature 0+
   minSupportedVersion int16 0+
   maxSupportedVersion int16 0+
"""

# __cluster_metadata
CLUSTER_METADATA = """
RegisterBrokerRecord 0-4 0+ 0
 brokerId int32 0+
 isMigratingZkBroker bool 2+ default=false
 incarnationId uuid 0+
 brokerEpoch int64 0+
 endPoints []BrokerEndpoint 0+
  name string 0+
  host string 0+
  port uint16 0+
  securityProtocol int16 0+
 features []BrokerFeature 0+
  name string 0+
  minSupportedVersion int16 0+
  maxSupportedVersion int16 0+
 rack string? 0+
 fenced bool 0+ default=true
 inControlledShutdown bool 1+ default=false
 logDirs []uuid 3+ tag=0
 cordonedLogDirs []uuid? 4+ tag=1 default=null
UnregisterBrokerRecord 0 0+ 1
 brokerId int32 0+
 brokerEpoch int64 0+
TopicRecord 0 0+ 2
 name string 0+
 topicId uuid 0+
PartitionRecord 0-2 0+ 3
 partitionId int32 0+ default=-1
 topicId uuid 0+
 replicas []int32 0+
 isr []int32 0+
 removingReplicas []int32 0+
 addingReplicas []int32 0+
 leader int32 0+ default=-1
 leaderRecoveryState int8 0+ tag=0 default=0
 leaderEpoch int32 0+ default=-1
 partitionEpoch int32 0+ default=-1
 directories []uuid 1+
 eligibleLeaderReplicas []int32? 2+ tag=1 default=null
 lastKnownElr []int32? 2+ tag=2 default=null
ConfigRecord 0 0+ 4
 resourceType int8 0+
 resourceName string 0+
 name string 0+
 value string? 0+
PartitionChangeRecord 0-2 0+ 5
 partitionId int32 0+ default=-1
 topicId uuid 0+
 isr []int32? 0+ tag=0 default=null
 leader int32 0+ tag=1 default=-2
 replicas []int32? 0+ tag=2 default=null
 removingReplicas []int32? 0+ tag=3 default=null
 addingReplicas []int32? 0+ tag=4 default=null
 leaderRecoveryState int8 0+ tag=5 default=-1
 directories []uuid? 1+ tag=8 default=null
 eligibleLeaderReplicas []int32? 2+ tag=6 default=null
 lastKnownElr []int32? 2+ tag=7 default=null
FenceBrokerRecord 0 0+ 7
 id int32 0+
 epoch int64 0+
UnfenceBrokerRecord 0 0+ 8
 id int32 0+
 epoch int64 0+
RemoveTopicRecord 0 0+ 9
 topicId uuid 0+
DelegationTokenRecord 0 0+ 10
 owner string 0+
 requester string 0+
 renewers []string 0+
 issueTimestamp int64 0+
 maxTimestamp int64 0+
 expirationTimestamp int64 0+
 tokenId string 0+
UserScramCredentialRecord 0 0+ 11
 name string 0+
 mechanism int8 0+
 salt bytes 0+
 storedKey bytes 0+
 serverKey bytes 0+
 iterations int32 0+
FeatureLevelRecord 0 0+ 12
 name string 0+
 featureLevel int16 0+
ClientQuotaRecord 0 0+ 14
 entity []EntityData 0+
  entityType string 0+
  entityName string? 0+
 key string 0+
 value float64 0+
 remove bool 0+
ProducerIdsRecord 0 0+ 15
 brokerId int32 0+
 brokerEpoch int64 0+ default=-1
 nextProducerId int64 0+
BrokerRegistrationChangeRecord 0-3 0+ 17
 brokerId int32 0+
 brokerEpoch int64 0+
 fenced int8 0+ tag=0
 inControlledShutdown int8 1+ tag=1
 logDirs []uuid 2+ tag=2
 cordonedLogDirs []uuid? 3+ tag=3 default=null
AccessControlEntryRecord 0 0+ 18
 id uuid 0+
 resourceType int8 0+
 resourceName string 0+
 patternType int8 0+
 principal string 0+
 host string 0+
 operation int8 0+
 permissionType int8 0+
RemoveAccessControlEntryRecord 0 0+ 19
 id uuid 0+
NoOpRecord 0 0+ 20
ZkMigrationStateRecord 0 0+ 21
 zkMigrationState int8 0+
RemoveUserScramCredentialRecord 0 0+ 22
 name string 0+
 mechanism int8 0+
BeginTransactionRecord 0 0+ 23
 name string? 0+ tag=0 default=null
EndTransactionRecord 0 0+ 24
AbortTransactionRecord 0 0+ 25
 reason string? 0+ tag=0 default=null
RemoveDelegationTokenRecord 0 0+ 26
 tokenId string 0+
RegisterControllerRecord 0 0+ 27
 controllerId int32 0+
 incarnationId uuid 0+
 zkMigrationReady bool 0+
 endPoints []ControllerEndpoint 0+
  name string 0+
  host string 0+
  port uint16 0+
  securityProtocol int16 0+
 features []ControllerFeature 0+
  name string 0+
  minSupportedVersion int16 0+
  maxSupportedVersion int16 0+
ClearElrRecord 0 0+ 28
 topicName string 0+
"""
