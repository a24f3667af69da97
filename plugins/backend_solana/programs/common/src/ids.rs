//! Addresses compiled in. Those of our programs are for local chains: their keys follow from public seeds
//! (SHA-256 of "psyche/NAME/local chains"), so build with your own before you deploy where others can.
use crate::Pubkey;

/// Coordinator: 4t6nXm8shbyAsZTLvdCPi11MxKDXktwSoxcTz38NcqAd
pub const COORDINATOR: Pubkey = [57, 170, 57, 33, 159, 68, 175, 7, 180, 155, 1, 73, 9, 62, 172, 88, 156, 122, 222, 131, 72, 251, 193, 19, 195, 155, 161, 150, 93, 124, 157, 22];
/// Authorizer: 5CYB3VexRVB2HAJzmy5gF8fG61VPAZv6dZDHrFndTJVk
pub const AUTHORIZER: Pubkey = [62, 99, 98, 91, 52, 104, 77, 51, 95, 132, 6, 122, 188, 30, 43, 206, 150, 217, 186, 103, 228, 29, 116, 227, 85, 158, 139, 192, 129, 97, 163, 87];
/// Treasurer: 5ZFQNB2VADQm8TPiLVoCsqUEAFXFBtkB5aeQmkq2whaF
pub const TREASURER: Pubkey = [67, 177, 158, 115, 51, 150, 165, 82, 222, 137, 120, 25, 113, 207, 65, 179, 8, 210, 126, 24, 94, 120, 88, 228, 255, 50, 106, 103, 125, 32, 108, 104];
/// Mining pool: 4ssexxnaGG8Tm3bBW3Aqx65RQTx4xeAjQiKvoihd6wEY
pub const MINING_POOL: Pubkey = [57, 155, 96, 100, 132, 172, 28, 238, 92, 245, 86, 126, 207, 13, 68, 16, 20, 122, 19, 160, 151, 13, 218, 126, 229, 204, 194, 198, 16, 167, 234, 241];
/// Bond: AYQUQT9cP41xsGDxFGgz3rUtu3tkkyV7SYoEDN47yxRe
pub const BOND: Pubkey = [141, 196, 186, 84, 24, 116, 192, 39, 68, 221, 7, 36, 203, 223, 41, 178, 45, 50, 168, 162, 38, 12, 32, 152, 32, 175, 125, 170, 117, 14, 158, 145];

/// System program: 11111111111111111111111111111111
pub const SYSTEM: Pubkey = [0; 32];
/// The hashes of the last 512 slots: SysvarS1otHashes111111111111111111111111111
pub const SLOT_HASHES: Pubkey = [6, 167, 213, 23, 25, 47, 10, 175, 198, 242, 101, 227, 251, 119, 204, 122, 218, 130, 197, 41, 208, 190, 59, 19, 110, 45, 0, 85, 32, 0, 0, 0];
/// SPL Token: TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA
pub const TOKEN: Pubkey = [6, 221, 246, 225, 215, 101, 161, 147, 217, 203, 225, 70, 206, 235, 121, 172, 28, 180, 133, 237, 95, 91, 55, 145, 58, 140, 245, 133, 126, 255, 0, 169];
/// Associated token accounts: ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL
pub const ASSOCIATED_TOKEN: Pubkey = [140, 151, 37, 143, 78, 36, 137, 241, 187, 61, 16, 41, 20, 142, 13, 131, 11, 90, 19, 153, 218, 255, 16, 132, 4, 142, 123, 216, 219, 233, 248, 89];
